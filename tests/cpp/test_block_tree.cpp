#include <doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "core/by_address.h"
#include "core/free_index.h"

namespace gma {
namespace {

// A small fan-out, so that a few hundred keys make a tree of many levels.
using SmallTree = BlockTree<Bytes, 4>;

// The tree and a map of the standard library, which has to hold the same.
class Twins {
public:
    void insert(Bytes key) {
        if (!map_.emplace(key, &blocks_[key]).second) { return; }
        tree_.insert(key, &blocks_[key]);
    }
    void erase_from(Bytes key) {
        auto at = map_.lower_bound(key);
        if (at == map_.end()) { return; }
        const auto next = tree_.erase(at->first);
        at = map_.erase(at);
        REQUIRE((next == tree_.end()) == (at == map_.end()));
        if (at != map_.end()) { REQUIRE(*next == at->second); }
    }
    void check_searches(Bytes key) const {
        const auto above = map_.lower_bound(key);
        const auto found = tree_.lower_bound(key);
        REQUIRE((found == tree_.end()) == (above == map_.end()));
        if (above != map_.end()) { REQUIRE(*found == above->second); }
        const auto beyond = map_.upper_bound(key);
        const auto last = tree_.last_up_to(key);
        REQUIRE((last == tree_.end()) == (beyond == map_.begin()));
        if (beyond != map_.begin()) { REQUIRE(last.key() == std::prev(beyond)->first); }
    }
    void check_order() const {
        REQUIRE(tree_.size() == map_.size());
        REQUIRE(tree_.empty() == map_.empty());
        REQUIRE(tree_.last() == (map_.empty() ? nullptr : map_.rbegin()->second));
        auto it = tree_.begin();
        for (const auto& [key, block] : map_) {
            REQUIRE(it.key() == key);
            REQUIRE(*it == block);
            ++it;
        }
        REQUIRE(it == tree_.end());
    }
    std::size_t size() const { return map_.size(); }

private:
    std::map<Bytes, Block> blocks_;
    std::map<Bytes, Block*> map_;
    SmallTree tree_;
};

}  // namespace

TEST_CASE("a tree of blocks answers as an ordered map does") {
    std::mt19937 random(20261129);  // NOLINT(cert-msc51-cpp): a failure must come again
    Twins twins;
    twins.check_order();
    // It grows and shrinks to nothing, among few keys and among many, in any order and in a row.
    for (const Bytes range : {8, 300, 3000}) {
        for (const unsigned grows_percent : {70U, 50U, 30U, 80U, 20U, 0U}) {
            CAPTURE(range);
            CAPTURE(grows_percent);
            Bytes in_row = random() % range;
            for (int step = 0; step < 1500; ++step) {
                const Bytes key = step % 500 < 250 ? random() % range : in_row++ % range;
                if (random() % 100 < grows_percent) {
                    twins.insert(key);
                } else {
                    twins.erase_from(key);
                }
                twins.check_searches(random() % range);
                if (step % 50 == 0) { twins.check_order(); }
            }
            twins.check_order();
        }
        while (twins.size() > 0) { twins.erase_from(0); }
        twins.check_order();
    }
}

TEST_CASE("the index of free blocks finds the smallest that holds a request, the lowest of those") {
    std::mt19937 random(20261129);  // NOLINT(cert-msc51-cpp): a failure must come again
    FreeIndex index;
    std::vector<Block> blocks(2000);
    std::vector<Block*> free;
    std::vector<Block*> used;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        blocks[i].address = 1_GiB + i * 64_KiB;
        used.push_back(&blocks[i]);
    }
    // Many of few sizes, and of a bin's both ends.
    const auto random_bytes = [&] { return (1 + random() % 40) * kUnitBytes << random() % 4 * 3; };
    const auto smaller = [](const Block* a, const Block* b) {
        return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
    };
    const auto smallest_where = [&](auto&& holds) {
        Block* smallest = nullptr;
        for (Block* block : free) {
            if (holds(block) && (smallest == nullptr || smaller(block, smallest))) {
                smallest = block;
            }
        }
        return smallest;
    };
    const auto move_random = [&](std::vector<Block*>& from, std::vector<Block*>& to) {
        std::swap(from[random() % from.size()], from.back());
        to.push_back(from.back());
        from.pop_back();
        return to.back();
    };
    for (int step = 0; step < 12'000; ++step) {
        const bool fills = step % 6'000 < 3'000;
        if (!used.empty() && (free.empty() || random() % 100 < (fills ? 65 : 35))) {
            Block* block = move_random(used, free);
            block->bytes = random_bytes();
            block->address = round_down(block->address, 64_KiB) + random() % 8 * kUnitBytes;
            index.insert(block);
        } else {
            Block* block = move_random(free, used);
            index.remove(block);
        }
        const Bytes bytes = random_bytes();
        const Bytes alignment = kUnitBytes << random() % 4;
        REQUIRE(index.find(bytes, alignment) == smallest_where([&](const Block* block) {
                    return round_up(block->address, alignment) + bytes <= block->end();
                }));
        const Block* excluded = index.find(bytes, kUnitBytes);
        REQUIRE(index.smallest_other(bytes, excluded) == smallest_where([&](const Block* block) {
                    return block->bytes >= bytes && block != excluded;
                }));
        if (step % 20 != 0) { continue; }
        const std::vector<const Block*> listed(index.begin(), index.end());
        REQUIRE(index.size() == free.size());
        REQUIRE(listed.size() == free.size());
        REQUIRE(std::is_sorted(listed.begin(), listed.end(), smaller));
        REQUIRE(index.largest_bytes() == (listed.empty() ? 0 : listed.back()->bytes));
        for (const Block* block : free) {  // also where sizes share a slot
            REQUIRE(index.lowest().may_be_below(block->bytes, block->address + 1));
        }
    }
}

TEST_CASE("holes are found by what lies in them and behind an address") {
    std::vector<Block> blocks(3);
    ByAddress holes;
    CHECK(holes.from(0) == holes.end());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        blocks[i].address = (1 + 4 * i) * 1_MiB;
        blocks[i].bytes = 2_MiB;
        holes.insert(&blocks[i]);
    }
    CHECK(*holes.from(0) == &blocks[0]);
    CHECK(*holes.from(3_MiB - 1) == &blocks[0]);
    CHECK(*holes.from(3_MiB) == &blocks[1]);
    CHECK(*holes.from(5_MiB) == &blocks[1]);
    CHECK(holes.from(11_MiB) == holes.end());
    CHECK(holes.holding(5_MiB, 7_MiB) == &blocks[1]);
    CHECK(holes.holding(5_MiB, 7_MiB + 1) == nullptr);
    CHECK(holes.holding(4_MiB, 5_MiB) == nullptr);
    CHECK(holes.holding(0, 1) == nullptr);
    holes.erase(&blocks[1]);
    CHECK(*holes.from(3_MiB) == &blocks[2]);
}

}  // namespace gma
