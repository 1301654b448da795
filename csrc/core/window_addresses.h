// Addresses for GuardedMemory: each window is new, or has been unused for long.
//
// They are taken in order from one free range after the other, the largest next. A window that is
// retired is in quarantine: its addresses stay reserved, mapped to nothing, and nobody gets them
// until more than the budget is in quarantine; then the oldest may be used again. Every address of
// a reservation is in one window that is taken, in quarantine, or free.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "driver/driver.h"

namespace gma {

class WindowAddresses {
public:
    // As large as one reservation is made, where the process has such a range.
    static constexpr Bytes kReservationBytes = 1ULL << 40;

    WindowAddresses(Driver& driver, int device, Bytes page_bytes, Bytes quarantine_bytes)
        : driver_(driver),
          device_(device),
          page_bytes_(page_bytes),
          quarantine_limit_bytes_(quarantine_bytes) {}
    WindowAddresses(const WindowAddresses&) = delete;
    WindowAddresses& operator=(const WindowAddresses&) = delete;
    // Nothing is mapped any more.
    ~WindowAddresses();

    // Whole pages.
    Result<Address> take(Bytes bytes);
    // Never used: free at once.
    void give_back(Address address, Bytes bytes);
    // Into quarantine. Returns the windows that leave it, oldest first.
    std::vector<Address> retire(Address address, Bytes bytes);

    Bytes quarantined_bytes() const { return quarantined_bytes_; }
    Bytes reserved_bytes() const { return reserved_bytes_; }
    // Every address of a reservation is free, in quarantine, or in one of the `taken` windows,
    // which are in order.
    Status audit(const std::vector<ByteRange>& taken) const;

private:
    Address take_free(Bytes bytes);
    void add_free(Address address, Bytes bytes);
    void remove_free(std::map<Address, Bytes>::iterator range);
    Status reserve_more(Bytes bytes);

    Driver& driver_;
    const int device_;
    const Bytes page_bytes_;
    const Bytes quarantine_limit_bytes_;
    std::map<Address, Bytes> reservations_;
    std::map<Address, Bytes> free_;                 // merged
    std::set<std::pair<Bytes, Address>> by_bytes_;  // the same
    Address next_ = 0;                              // where the last one ended
    std::deque<std::pair<Address, Bytes>> quarantine_;
    Bytes quarantined_bytes_ = 0;
    Bytes reserved_bytes_ = 0;
};

}  // namespace gma
