// A slab is a run of about 64 KiB cut into objects of one size class.
//   popcount(free_bits) == free_count <= object_count;
//   an object whose recorded bit is set may be in use by another stream (or waits for it).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/arena.h"
#include "core/size_class.h"

namespace gma {

class ThreadCache;

struct Slab {
    static constexpr Bytes kBytes = 64_KiB;
    static constexpr std::size_t kMaxObjects = kBytes / kUnitBytes;
    static constexpr std::size_t kWordCount = kMaxObjects / 64;

    Slab(Block* slab_block, ThreadCache* owner, int class_index)
        : cache(owner),
          block(slab_block),
          base(slab_block->address),
          object_bytes(static_cast<std::uint32_t>(class_bytes(class_index))),
          object_count(static_cast<std::uint32_t>(kBytes / object_bytes)),
          reciprocal(((1ULL << 32) + object_bytes - 1) / object_bytes),
          free_count(object_count),
          size_class(class_index) {
        for (std::uint32_t i = 0; i < object_count; ++i) { set(free_bits, i); }
    }

    using Bits = std::array<std::uint64_t, kWordCount>;
    static bool test(const Bits& bits, std::uint32_t i) { return (bits[i / 64] >> (i % 64)) & 1; }
    static void set(Bits& bits, std::uint32_t i) { bits[i / 64] |= 1ULL << (i % 64); }
    static void clear(Bits& bits, std::uint32_t i) { bits[i / 64] &= ~(1ULL << (i % 64)); }

    // The lowest free object: address order, so that a repeated step gets the same addresses.
    std::uint32_t take() {
        for (std::uint32_t word = 0;; ++word) {
            if (free_bits[word] == 0) { continue; }
            const auto bit = static_cast<std::uint32_t>(std::countr_zero(free_bits[word]));
            free_bits[word] &= free_bits[word] - 1;
            --free_count;
            return word * 64 + bit;
        }
    }
    void put(std::uint32_t index) {
        set(free_bits, index);
        ++free_count;
    }

    Address address_of(std::uint32_t index) const { return base + Bytes{index} * object_bytes; }
    // The object that starts at `address`, or object_count if none does.
    std::uint32_t index_of(Address address) const {
        const auto offset = static_cast<std::uint32_t>(address - base);
        // offset / object_bytes, exact below 64 KiB: a division would be a third of a free's time.
        const auto index = static_cast<std::uint32_t>((offset * reciprocal) >> 32);
        return index < object_count && index * object_bytes == offset ? index : object_count;
    }
    // Runs of free objects, the unused end among them.
    template <class Visit>
    void for_each_free_run(Visit&& visit) const {
        std::uint32_t begin = 0;
        for (std::uint32_t i = 0; i < object_count; ++i) {
            if (test(free_bits, i)) { continue; }
            if (begin < i) { visit(address_of(begin), address_of(i)); }
            begin = i + 1;
        }
        const Address end = block->address + block->bytes;
        if (address_of(begin) < end) { visit(address_of(begin), end); }
    }
    bool full() const { return free_count == 0; }
    bool empty() const { return free_count == object_count; }

    ThreadCache* const cache;
    Block* const block;
    const Address base;
    const std::uint32_t object_bytes;
    const std::uint32_t object_count;
    const std::uint64_t reciprocal;  // of object_bytes, times 2^32, rounded up
    std::uint32_t free_count;
    const int size_class;
    Bits free_bits{};
    Bits recorded_bits{};
    std::array<std::uint16_t, kMaxObjects> unused_bytes{};  // object_bytes - requested
};

// The reciprocal's rounding error, below object_bytes / 2^32, never reaches the next multiple.
static_assert(Slab::kBytes * class_bytes(kClassCount - 1) < 1ULL << 32);
static_assert(class_bytes(kClassCount - 1) <= Slab::kBytes / 8, "a slab holds several objects");

}  // namespace gma
