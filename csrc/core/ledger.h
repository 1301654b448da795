// What the no-sharing mode knows of each tensor of one device: those that live, those that wait for
// their fence, and those whose addresses are in quarantine; and what was found wrong.
//
// The device's lock is held for every call.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/isolation.h"

namespace gma {

class Ledger {
public:
    // Frees that are remembered, and violations.
    static constexpr std::size_t kMaxGone = 1 << 18;
    static constexpr std::size_t kMaxViolations = 1000;

    explicit Ledger(int device) : device_(device) {}

    // Numbers the entry and puts down the time.
    void allocated(LedgerEntry entry);
    // The block is no longer the caller's: it waits.
    void freed(Address address);
    // Nobody can reach its memory any more.
    void quarantined(Address address);
    // Its addresses may be used for others from now on.
    void expired(Address address);

    const LedgerEntry* live(Address address) const;
    // The newest one that was freed there and not forgotten.
    const LedgerEntry* gone(Address address) const;
    // The newest one that was freed and had this byte; nullptr: none is remembered.
    const LedgerEntry* last_at(Address address) const;
    // In the order of their numbers.
    std::vector<LedgerEntry> entries() const;
    const std::unordered_map<Address, LedgerEntry>& live() const { return live_; }
    bool used() const { return allocation_count_ > 0; }

    // The same finding a second time changes nothing.
    void add(Violation violation);
    // A free of what is not allocated: names both frees where the first is known.
    Violation refused_free(Address address);
    // The newest ones, oldest first.
    std::vector<Violation> violations() const { return {found_.begin(), found_.end()}; }
    std::uint64_t violation_count() const { return violation_count_; }

private:
    void forget_oldest();

    const int device_;
    std::uint64_t allocation_count_ = 0;
    std::uint64_t free_count_ = 0;
    std::unordered_map<Address, LedgerEntry> live_;
    std::map<Address, LedgerEntry> gone_;
    std::deque<std::pair<Address, std::uint64_t>> gone_order_;  // with their free numbers
    std::deque<Violation> found_;
    std::uint64_t violation_count_ = 0;
};

}  // namespace gma
