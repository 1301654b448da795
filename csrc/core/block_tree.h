// Blocks in the order of a key, an unsigned integer that no two of them share: a B+ tree.
//
// A search reads rows of keys that lie side by side, and no Block. In a binary tree of blocks each
// step is a cache miss, and a branch that the processor guesses wrong half of the time.
//
//   Every node but a root without children has a value, and an inner root has two.
//   A leaf's values are blocks. An inner node's key is at most every key below it, and above every
//   key below the one before; the first one says nothing and is never asked.
//
// A node is split when it is full, and goes when it is empty; nodes are never joined. ("B-trees
// with inserts and deletes: why free-at-empty is better than merge-at-half", Johnson and Shasha,
// 1993.)
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "core/block.h"

namespace gma {

template <class Key, std::size_t kFanout = 16>
class BlockTree {
    static_assert(std::has_single_bit(kFanout) && kFanout >= 4, "searches halve a node");
    static constexpr Key kBeyondAll = ~Key{0};
    static constexpr std::size_t kMaxCount = kFanout - 1;
    struct Node;
    union Value {
        Block* block;
        Node* child;
    };
    struct Node {
        Node() { keys.fill(kBeyondAll); }
        Node* previous = nullptr;  // on the same level
        Node* next = nullptr;
        std::size_t count = 0;
        std::array<Key, kFanout> keys;  // from `count` on they are beyond all
        std::array<Value, kFanout> values;

        bool full() const { return count == kMaxCount; }
        // How many keys come before `key`, and how many do not come after it.
        std::size_t count_below(Key key) const {
            return count_while([key](Key other) { return other < key; });
        }
        std::size_t count_up_to(Key key) const {
            return count_while([key](Key other) { return other <= key; });
        }
        // What is below all keys goes to the first child, as if its key were lower.
        std::size_t child_index(Key key) const {
            const std::size_t up_to = count_up_to(key);
            return up_to - (up_to > 0);
        }
        void insert(std::size_t index, Key key, Value value) {
            std::copy_backward(&keys[index], &keys[count], &keys[count + 1]);
            std::copy_backward(&values[index], &values[count], &values[count + 1]);
            keys[index] = key;
            values[index] = value;
            ++count;
        }
        void erase(std::size_t index) {
            std::copy(&keys[index + 1], &keys[count], &keys[index]);
            std::copy(&values[index + 1], &values[count], &values[index]);
            keys[--count] = kBeyondAll;
        }

    private:
        // A binary search without a branch: always the same number of steps.
        template <class Before>
        std::size_t count_while(Before&& before) const {
            std::size_t passed = 0;
            for (std::size_t step = kFanout / 2; step > 0; step /= 2) {
                passed += step & -static_cast<std::size_t>(before(keys[passed + step - 1]));
            }
            return passed;
        }
    };

public:
    class Iterator {
    public:
        using iterator_category = std::forward_iterator_tag;
        using value_type = Block*;
        using difference_type = std::ptrdiff_t;
        using pointer = Block* const*;
        using reference = Block* const&;

        Iterator() = default;
        Block* const& operator*() const { return leaf_->values[index_].block; }
        Key key() const { return leaf_->keys[index_]; }
        Iterator& operator++() {
            *this = Iterator(leaf_, index_ + 1);
            return *this;
        }
        Iterator operator++(int) {
            Iterator before = *this;
            ++*this;
            return before;
        }
        friend bool operator==(const Iterator&, const Iterator&) = default;

    private:
        friend class BlockTree;
        Iterator(const Node* leaf, std::size_t index)
            : leaf_(index < leaf->count ? leaf : leaf->next),
              index_(index < leaf->count ? index : 0) {}
        const Node* leaf_ = nullptr;  // nullptr: past the last
        std::size_t index_ = 0;
    };

    BlockTree() = default;
    BlockTree(const BlockTree&) = delete;
    BlockTree& operator=(const BlockTree&) = delete;
    ~BlockTree() {
        Node* row = root_;
        for (std::size_t level = height_; row != nullptr; --level) {
            Node* const below = level > 0 ? row->values[0].child : nullptr;
            while (row != nullptr) { delete std::exchange(row, row->next); }
            row = below;
        }
    }

    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    Iterator begin() const {
        if (root_ == nullptr) { return end(); }
        const Node* node = root_;
        for (std::size_t level = height_; level > 0; --level) { node = node->values[0].child; }
        return {node, 0};
    }
    Iterator end() const { return {}; }
    Block* last() const {
        if (root_ == nullptr) { return nullptr; }
        const Node* node = root_;
        for (std::size_t level = height_; level > 0; --level) {
            node = node->values[node->count - 1].child;
        }
        return node->count == 0 ? nullptr : node->values[node->count - 1].block;
    }
    // The first block whose key is not below `key`.
    Iterator lower_bound(Key key) const {
        if (root_ == nullptr) { return end(); }
        const Node* leaf = leaf_of(key);
        return {leaf, leaf->count_below(key)};
    }
    // The last block whose key is not above `key`, or end().
    Iterator last_up_to(Key key) const {
        if (root_ == nullptr) { return end(); }
        const Node* leaf = leaf_of(key);
        std::size_t count = leaf->count_up_to(key);
        if (count == 0) {
            leaf = leaf->previous;
            if (leaf == nullptr) { return end(); }
            count = leaf->count;
        }
        return count == 0 ? end() : Iterator(leaf, count - 1);
    }

    // Returns the key that comes before it, or a number above all keys.
    Key insert(Key key, Block* block) {
        if (root_ == nullptr) { root_ = new Node; }
        Path path;
        Node* node = descend(key, path);
        std::size_t index = node->count_below(key);
        const Key before = key_before(*node, index);
        Value value{.block = block};
        for (std::size_t level = 0; node->full(); ++level) {
            Node* upper = split(node);
            if (index > node->count) {
                upper->insert(index - node->count, key, value);
            } else {
                node->insert(index, key, value);
            }
            key = upper->keys[0];
            value = {.child = upper};
            if (level == height_) {
                grow(node);
                path[height_] = {root_, 0};
            }
            const Step& above = path[level + 1];
            node = above.node;
            index = above.index + 1;
        }
        node->insert(index, key, value);
        ++size_;
        return before;
    }
    // Returns what follows.
    Iterator erase(Key key) {
        Path path;
        Node* node = descend(key, path);
        const std::size_t index = node->count_below(key);
        GMA_ASSERT_EQ(index < node->count && node->keys[index] == key, true,
                      "what is erased is in the tree");
        node->erase(index);
        --size_;
        const Iterator next(node, index);
        for (std::size_t level = 1; node->count == 0 && node != root_; ++level) {
            unlink(node);
            node = path[level].node;
            node->erase(path[level].index);
        }
        while (height_ > 0 && root_->count == 1) {
            --height_;
            delete std::exchange(root_, root_->values[0].child);
        }
        return next;
    }

private:
    struct Step {
        Node* node;
        std::size_t index;
    };
    // A level more takes about kFanout / 2 times as many insertions, however many are erased
    // meanwhile.
    static constexpr std::size_t kMaxHeight = 64 / (std::bit_width(kFanout) - 2) + 1;
    using Path = std::array<Step, kMaxHeight + 1>;  // by level above the leaves, from 1

    const Node* leaf_of(Key key) const {
        const Node* node = root_;
        for (std::size_t level = height_; level > 0; --level) {
            node = node->values[node->child_index(key)].child;
        }
        return node;
    }
    Node* descend(Key key, Path& path) const {
        Node* node = root_;
        for (std::size_t level = height_; level > 0; --level) {
            const std::size_t index = node->child_index(key);
            path[level] = {node, index};
            node = node->values[index].child;
        }
        return node;
    }
    static Key key_before(const Node& leaf, std::size_t index) {
        if (index > 0) { return leaf.keys[index - 1]; }
        return leaf.previous != nullptr ? leaf.previous->keys[leaf.previous->count - 1]
                                        : kBeyondAll;
    }
    // Moves the upper half of a full node into a new one, which follows it.
    static Node* split(Node* node) {
        Node* upper = new Node;
        const std::size_t middle = kFanout / 2;
        std::copy(&node->keys[middle], &node->keys[kMaxCount], upper->keys.data());
        std::copy(&node->values[middle], &node->values[kMaxCount], upper->values.data());
        std::fill(&node->keys[middle], &node->keys[kMaxCount], kBeyondAll);
        upper->count = kMaxCount - middle;
        node->count = middle;
        upper->previous = node;
        upper->next = node->next;
        if (upper->next != nullptr) { upper->next->previous = upper; }
        node->next = upper;
        return upper;
    }
    void grow(Node* lower) {
        root_ = new Node;
        root_->insert(0, lower->keys[0], {.child = lower});
        ++height_;
    }
    static void unlink(Node* node) {
        if (node->previous != nullptr) { node->previous->next = node->next; }
        if (node->next != nullptr) { node->next->previous = node->previous; }
        delete node;
    }

    Node* root_ = nullptr;    // until something was inserted
    std::size_t height_ = 0;  // levels above the leaves
    std::size_t size_ = 0;
};

}  // namespace gma
