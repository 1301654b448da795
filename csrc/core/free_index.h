// The mapped free blocks of an arena, ordered by size and then by address.
//
// The smallest block that fits is taken; of equal ones the lowest. Address order, not
// last-in-first-out, is what makes a repeated step get the same addresses again.
#pragma once

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
    }
    void remove(Block* block) { spare_node_ = blocks_.extract(block); }

    // The smallest block of at least `bytes` that holds `bytes` at the alignment, or nullptr.
    Block* find(Bytes bytes, Bytes alignment) const {
        Block probe;
        probe.bytes = bytes;
        for (auto it = blocks_.lower_bound(&probe); it != blocks_.end(); ++it) {
            if (round_up((*it)->address, alignment) + bytes <= (*it)->end()) { return *it; }
        }
        return nullptr;
    }

    Bytes largest_bytes() const { return blocks_.empty() ? 0 : (*blocks_.rbegin())->bytes; }
    const Set& blocks() const { return blocks_; }

private:
    Set blocks_;
    Set::node_type spare_node_;
};

}  // namespace gma
