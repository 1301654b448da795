// The mapped free blocks of an arena, ordered by size and then by address.
//
// The smallest block that fits is taken; of equal ones the lowest. Address order, not
// last-in-first-out, is what makes a repeated step get the same addresses again.
//
// Sixteen bins to each doubling of size, a bit for each bin that has a block, and in a bin a tree.
// So a search that meets many sizes begins close to its end, and one among blocks of one size is
// still a tree's.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <iterator>

#include "core/block_tree.h"
#include "core/lowest_of_size.h"

namespace gma {

// Sizes whose five leading bits are the same share a bin; small ones have their own.
constexpr std::size_t size_bin(Bytes bytes) {
    constexpr Bytes kBinsToDoubling = 16;
    const Bytes units = bytes / kUnitBytes;
    if (units < kBinsToDoubling) { return units; }
    const auto more_bits = static_cast<Bytes>(std::bit_width(units / kBinsToDoubling) - 1);
    return more_bits * kBinsToDoubling + (units >> more_bits);
}
static_assert(size_bin(15 * kUnitBytes) == 15 && size_bin(16 * kUnitBytes) == 16);
static_assert(size_bin(63 * kUnitBytes) == 47 && size_bin(64 * kUnitBytes) == 48);

class FreeIndex {
    // Compared as one number, without a branch: the size above the address.
    using SizeThenAddress = unsigned __int128;
    using Tree = BlockTree<SizeThenAddress>;

public:
    class Iterator {
    public:
        using iterator_category = std::input_iterator_tag;
        using value_type = Block*;
        using difference_type = std::ptrdiff_t;
        using pointer = Block* const*;
        using reference = Block*;

        Block* operator*() const { return *at_; }
        Iterator& operator++() {
            if (++at_ == index_->bins_[bin_].end()) { *this = index_->first_of(bin_ + 1); }
            return *this;
        }
        Iterator operator++(int) {
            Iterator before = *this;
            ++*this;
            return before;
        }
        bool operator==(const Iterator& other) const { return at_ == other.at_; }

    private:
        friend class FreeIndex;
        Iterator() = default;
        Iterator(const FreeIndex* index, std::size_t bin, Tree::Iterator at)
            : index_(index), bin_(bin), at_(at) {}
        const FreeIndex* index_ = nullptr;
        std::size_t bin_ = 0;
        Tree::Iterator at_;
    };
    Iterator begin() const { return first_of(0); }
    Iterator end() const { return {}; }
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }

    void insert(Block* block) {
        const std::size_t bin = size_bin(block->bytes);
        const SizeThenAddress before = bins_[bin].insert(key_of(block), block);
        has_blocks_[bin / 64] |= std::uint64_t{1} << bin % 64;
        ++size_;
        if (bytes_of(before) != block->bytes) { lowest_.insert(block->bytes, block->address); }
    }
    void remove(const Block* block) {
        const std::size_t bin = size_bin(block->bytes);
        Tree& tree = bins_[bin];
        const Tree::Iterator next = tree.erase(key_of(block));
        if (tree.empty()) { has_blocks_[bin / 64] &= ~(std::uint64_t{1} << bin % 64); }
        --size_;
        const bool same_size = next != tree.end() && bytes_of(next.key()) == block->bytes;
        lowest_.remove(block->bytes, block->address,
                       same_size ? address_of(next.key()) : LowestOfSize::kNone);
    }
    const LowestOfSize& lowest() const { return lowest_; }

    // The first block of at least `bytes`: the smallest, and of those the lowest.
    Iterator from(Bytes bytes) const {
        const std::size_t bin = size_bin(bytes);
        const Tree::Iterator at = bins_[bin].lower_bound(key(bytes, 0));
        return at != Tree::Iterator() ? Iterator(this, bin, at) : first_of(bin + 1);
    }
    // The smallest block of at least `bytes` that holds `bytes` at the alignment, or nullptr.
    Block* find(Bytes bytes, Bytes alignment) const {
        for (auto it = from(bytes); it != end(); ++it) {
            const Address address = address_of(it.at_.key());
            const Bytes room = bytes_of(it.at_.key());
            if (round_up(address, alignment) + bytes <= address + room) { return *it; }
        }
        return nullptr;
    }

    // The smallest block of at least `bytes` but `excluded`, the lowest among equals.
    Block* smallest_other(Bytes bytes, const Block* excluded) const {
        auto it = from(bytes);
        if (it != end() && *it == excluded) { ++it; }
        return it == end() ? nullptr : *it;
    }
    Bytes largest_bytes() const {
        for (std::size_t word = kWordCount; word-- > 0;) {
            if (const std::uint64_t bits = has_blocks_[word]; bits != 0) {
                return bins_[word * 64 + std::bit_width(bits) - 1].last()->bytes;
            }
        }
        return 0;
    }

private:
    static constexpr std::size_t kBinCount = size_bin(~Bytes{0}) + 1;
    static constexpr std::size_t kWordCount = (kBinCount + 63) / 64;

    static SizeThenAddress key(Bytes bytes, Address address) {
        return SizeThenAddress{bytes} << 64 | address;
    }
    static SizeThenAddress key_of(const Block* block) { return key(block->bytes, block->address); }
    static Bytes bytes_of(SizeThenAddress key) { return static_cast<Bytes>(key >> 64); }
    static Address address_of(SizeThenAddress key) { return static_cast<Address>(key); }

    Iterator first_of(std::size_t bin) const {
        std::size_t word = bin / 64;
        if (word == kWordCount) { return end(); }
        std::uint64_t bits = has_blocks_[word] & ~std::uint64_t{0} << bin % 64;
        while (bits == 0) {
            if (++word == kWordCount) { return end(); }
            bits = has_blocks_[word];
        }
        const std::size_t found = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        return {this, found, bins_[found].begin()};
    }

    std::array<Tree, kBinCount> bins_;
    std::array<std::uint64_t, kWordCount> has_blocks_{};
    std::size_t size_ = 0;
    LowestOfSize lowest_;
};

}  // namespace gma
