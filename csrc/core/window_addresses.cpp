#include "core/window_addresses.h"

#include <algorithm>
#include <iterator>

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

// The first free range from where the last search ended that is large enough, then from the start.
Address WindowAddresses::take_free(Bytes bytes) {
    const auto fits = [bytes](const auto& range) { return range.second >= bytes; };
    const auto from = free_.lower_bound(next_);
    auto found = std::find_if(from, free_.end(), fits);
    if (found == free_.end()) {
        found = std::find_if(free_.begin(), from, fits);
        if (found == from) { return 0; }
    }
    const auto [address, length] = *found;
    free_.erase(found);
    next_ = address + bytes;
    if (length > bytes) { free_[next_] = length - bytes; }
    return address;
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
            free_.erase(before);
        }
    }
    if (after != free_.end() && after->first == address + bytes &&
        !reservations_.contains(after->first)) {
        bytes += after->second;
        free_.erase(after);
    }
    free_[address] = bytes;
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

}  // namespace gma
