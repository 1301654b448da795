// Tiles of one kind by their address: holes, and free blocks with room for a page.
#pragma once

#include "core/block_tree.h"

namespace gma {

class ByAddress : public BlockTree<Address> {
public:
    void insert(Block* block) { BlockTree::insert(block->address, block); }
    void erase(const Block* block) { BlockTree::erase(block->address); }
    // The block that holds all of [begin, end), or nullptr.
    Block* holding(Address begin, Address end) const {
        const Iterator block = last_up_to(begin);
        return block != this->end() && end <= (*block)->end() ? *block : nullptr;
    }
    // The first block that ends above `address`.
    Iterator from(Address address) const {
        const Iterator block = last_up_to(address);
        return block != end() && (*block)->end() > address ? block : lower_bound(address);
    }
};

}  // namespace gma
