// The mapped free blocks of an arena, ordered by size and then by address.
//
// The smallest block that fits is taken; of equal ones the lowest. Address order, not
// last-in-first-out, is what makes a repeated step get the same addresses again.
#pragma once

#include <array>
#include <atomic>
#include <iterator>
#include <set>
#include <tuple>

#include "core/block.h"

namespace gma {

struct LowerAddress {
    bool operator()(const Block* a, const Block* b) const { return a->address < b->address; }
};
class ByAddress : public std::set<Block*, LowerAddress> {
public:
    // The block that holds all of [begin, end), or nullptr.
    Block* holding(Address begin, Address end) const {
        Block probe;
        probe.address = begin;
        auto it = upper_bound(&probe);
        if (it == this->begin()) { return nullptr; }
        --it;
        return end <= (*it)->end() ? *it : nullptr;
    }
};

// The lowest free block of exactly one size, for sizes that share a slot in turn. Written under the
// device's lock and read without it: what is read is a hint.
class LowestOfSize {
public:
    // Whether a lower free block of this size may be there, as far as is known.
    bool may_be_below(Bytes bytes, Address address) const {
        const Slot& slot = slots_[index(bytes)];
        return slot.bytes.load(std::memory_order_relaxed) != bytes ||
               slot.address.load(std::memory_order_relaxed) < address;
    }
    void insert(Bytes bytes, Address address) {
        Slot& slot = slots_[index(bytes)];
        const bool known = slot.bytes.load(std::memory_order_relaxed) == bytes;
        if (!known || address < slot.address.load(std::memory_order_relaxed)) {
            set(slot, bytes, address);
        }
    }
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

class FreeIndex {
    struct BySizeThenAddress {
        bool operator()(const Block* a, const Block* b) const {
            return std::tie(a->bytes, a->address) < std::tie(b->bytes, b->address);
        }
    };

public:
    using Set = std::set<Block*, BySizeThenAddress>;

    void insert(Block* block) {
        if (!spare_node_.empty()) {  // a set node per free would be two trips to malloc per block
            spare_node_.value() = block;
            blocks_.insert(std::move(spare_node_));
        } else {
            blocks_.insert(block);
        }
        lowest_.insert(block->bytes, block->address);
    }
    void remove(Block* block) {
        const auto it = blocks_.find(block);
        const auto next = std::next(it);
        const bool same_size = next != blocks_.end() && (*next)->bytes == block->bytes;
        lowest_.remove(block->bytes, block->address,
                       same_size ? (*next)->address : LowestOfSize::kNone);
        spare_node_ = blocks_.extract(it);
    }
    const LowestOfSize& lowest() const { return lowest_; }

    // The smallest block of at least `bytes` that holds `bytes` at the alignment, or nullptr.
    Block* find(Bytes bytes, Bytes alignment) const {
        Block probe;
        probe.bytes = bytes;
        for (auto it = blocks_.lower_bound(&probe); it != blocks_.end(); ++it) {
            if (round_up((*it)->address, alignment) + bytes <= (*it)->end()) { return *it; }
        }
        return nullptr;
    }

    // The smallest block of at least `bytes` but `excluded`, the lowest among equals.
    Block* smallest_other(Bytes bytes, const Block* excluded) const {
        Block probe;
        probe.bytes = bytes;
        auto it = blocks_.lower_bound(&probe);
        if (it != blocks_.end() && *it == excluded) { ++it; }
        return it == blocks_.end() ? nullptr : *it;
    }
    Bytes largest_bytes() const { return blocks_.empty() ? 0 : (*blocks_.rbegin())->bytes; }
    const Set& blocks() const { return blocks_; }

private:
    Set blocks_;
    LowestOfSize lowest_;
    Set::node_type spare_node_;
};

}  // namespace gma
