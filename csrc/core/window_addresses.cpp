#include "core/window_addresses.h"

#include <algorithm>
#include <iterator>

#include "core/segment_store.h"

namespace gma {

WindowAddresses::~WindowAddresses() {
    for (const auto& [address, bytes] : reservations_) {
        static_cast<void>(driver_.unreserve(address, bytes));
    }
}

Result<Address> WindowAddresses::take(Bytes bytes) {
    Address address = take_free(bytes);
    if (address == 0) {
        if (Status status = reserve_more(bytes); !status.ok()) { return status; }
        address = take_free(bytes);
    }
    return address;
}

// Behind the last one if that is free, so that what was given back before it is left alone for
// long; else at the start of the largest free range.
Address WindowAddresses::take_free(Bytes bytes) {
    Address address = next_;
    auto found = free_.upper_bound(next_);
    if (found == free_.begin() || (--found)->first + found->second < next_ + bytes) {
        if (by_bytes_.empty() || by_bytes_.rbegin()->first < bytes) { return 0; }
        address = by_bytes_.rbegin()->second;
        found = free_.find(address);
    }
    const auto [begin, length] = *found;
    remove_free(found);
    next_ = address + bytes;
    if (address > begin) { add_free(begin, address - begin); }
    if (begin + length > next_) { add_free(next_, begin + length - next_); }
    return address;
}

void WindowAddresses::add_free(Address address, Bytes bytes) {
    free_[address] = bytes;
    by_bytes_.emplace(bytes, address);
}

void WindowAddresses::remove_free(std::map<Address, Bytes>::iterator range) {
    by_bytes_.erase({range->second, range->first});
    free_.erase(range);
}

// A process may have less than a whole reservation left.
Status WindowAddresses::reserve_more(Bytes bytes) {
    for (Bytes length = std::max(kReservationBytes, bytes);; length /= 2) {
        Result<Address> address = driver_.reserve(device_, length, page_bytes_);
        if (address) {
            reservations_[*address] = length;
            reserved_bytes_ += length;
            give_back(*address, length);
            return {};
        }
        if (length / 2 < bytes || length / 2 < page_bytes_) { return address.status(); }
    }
}

void WindowAddresses::give_back(Address address, Bytes bytes) {
    auto after = free_.lower_bound(address);
    if (after != free_.begin()) {
        const auto before = std::prev(after);
        if (before->first + before->second == address && !reservations_.contains(address)) {
            address = before->first;
            bytes += before->second;
            remove_free(before);
        }
    }
    if (after != free_.end() && after->first == address + bytes &&
        !reservations_.contains(after->first)) {
        bytes += after->second;
        remove_free(after);
    }
    add_free(address, bytes);
}

std::vector<Address> WindowAddresses::retire(Address address, Bytes bytes) {
    quarantine_.emplace_back(address, bytes);
    quarantined_bytes_ += bytes;
    std::vector<Address> expired;
    while (quarantined_bytes_ > quarantine_limit_bytes_) {
        const auto [oldest, length] = quarantine_.front();
        quarantine_.pop_front();
        quarantined_bytes_ -= length;
        give_back(oldest, length);
        expired.push_back(oldest);
    }
    return expired;
}

Status WindowAddresses::audit(const std::vector<ByteRange>& taken) const {
    std::vector<ByteRange> all = taken;
    for (const auto& [address, bytes] : free_) { all.push_back({address, address + bytes}); }
    for (const auto& [address, bytes] : quarantine_) { all.push_back({address, address + bytes}); }
    std::sort(all.begin(), all.end(),
              [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
    Bytes quarantined = 0;
    for (const auto& [address, bytes] : quarantine_) { quarantined += bytes; }
    if (quarantined != quarantined_bytes_) {
        return broken_invariant("sum(quarantined windows) == quarantined bytes", quarantined,
                                quarantined_bytes_);
    }
    if (by_bytes_.size() != free_.size()) {
        return broken_invariant("free ranges are listed by size", by_bytes_.size(), free_.size());
    }
    auto range = all.begin();
    for (const auto& [address, bytes] : reservations_) {
        Address at = address;
        for (; range != all.end() && range->begin == at && at < address + bytes; ++range) {
            at = range->end;
        }
        if (at != address + bytes) {
            return broken_invariant("windows tile their reservation", at, address + bytes);
        }
    }
    if (range != all.end()) {
        return broken_invariant("a window lies in a reservation", range->begin, 0);
    }
    return {};
}

}  // namespace gma
