// The lowest free block of exactly one size, for sizes that share a slot in turn. Written under the
// device's lock and read without it: what is read is a hint.
#pragma once

#include <array>
#include <atomic>

#include "base/units.h"
#include "core/block.h"

namespace gma {

class LowestOfSize {
public:
    // Whether a lower free block of this size may be there, as far as is known.
    bool may_be_below(Bytes bytes, Address address) const {
        const Slot& slot = slots_[index(bytes)];
        return slot.bytes.load(std::memory_order_relaxed) != bytes ||
               slot.address.load(std::memory_order_relaxed) < address;
    }
    // The lowest one of its size has come.
    void insert(Bytes bytes, Address address) { set(slots_[index(bytes)], bytes, address); }
    // `next` is the following block of the size, or kNone.
    void remove(Bytes bytes, Address address, Address next) {
        Slot& slot = slots_[index(bytes)];
        if (slot.bytes.load(std::memory_order_relaxed) == bytes &&
            slot.address.load(std::memory_order_relaxed) == address) {
            set(slot, bytes, next);
        }
    }
    static constexpr Address kNone = ~Address{0};

private:
    struct Slot {
        std::atomic<Bytes> bytes{0};
        std::atomic<Address> address{kNone};
    };
    static constexpr std::size_t kSlotCount = 256;
    // Fibonacci hashing: 2^64 divided by the golden ratio (Knuth, TAOCP volume 3, section 6.4).
    static std::size_t index(Bytes bytes) {
        return static_cast<std::size_t>((bytes / kUnitBytes * 0x9E3779B97F4A7C15ULL) >> 56);
    }
    static void set(Slot& slot, Bytes bytes, Address address) {
        slot.bytes.store(bytes, std::memory_order_relaxed);
        slot.address.store(address, std::memory_order_relaxed);
    }
    std::array<Slot, kSlotCount> slots_;
};

}  // namespace gma
