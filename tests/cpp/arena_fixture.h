// An arena without a driver: chunks are only said to be mapped. For tests of the parts.
#pragma once

#include <doctest.h>

#include <memory>
#include <vector>

#include "core/arena.h"

namespace gma {

class ArenaFixture {
public:
    static constexpr Bytes kPage = 64_KiB;
    static constexpr Address kBase = 16 * Arena::kAlignmentBytes;

    Chunk* fill(Bytes page, Bytes page_count) {
        chunks_.push_back(std::make_unique<Chunk>());
        Chunk* chunk = chunks_.back().get();
        chunk->bytes = page_count * kPage;
        chunk->arena = &arena;
        chunk->address = at(page);
        arena.fill(chunk);
        check();
        return chunk;
    }
    static Address at(Bytes page) { return kBase + page * kPage; }
    // The tile that starts at a page.
    Block* tile(Bytes page) const {
        Block* found = arena.first();
        while (found != nullptr && found->address != at(page)) { found = found->next; }
        return found;
    }
    // Kinds in address order: "F" free, "U" used, "P" pending, "H" hole, "S" stale.
    std::string kinds() const {
        std::string text;
        for (const Block* block = arena.first(); block != nullptr; block = block->next) {
            text += "FUPHS"[static_cast<std::size_t>(block->kind)];
        }
        return text;
    }
    // The header's equations.
    void check() const {
        Address reached = arena.base();
        std::size_t free_count = 0;
        std::size_t hole_count = 0;
        const Block* previous = nullptr;
        for (const Block* block = arena.first(); block != nullptr; block = block->next) {
            REQUIRE(block->address == reached);
            REQUIRE(block->previous == previous);
            const bool joins = block->kind == TileKind::Free || block->kind == TileKind::Hole;
            REQUIRE_FALSE((previous != nullptr && joins && previous->kind == block->kind));
            free_count += block->kind == TileKind::Free;
            hole_count += block->kind == TileKind::Hole;
            reached = block->end();
            previous = block;
        }
        REQUIRE(reached == arena.base() + arena.bytes());
        REQUIRE(arena.free_blocks().size() == free_count);
        REQUIRE(arena.holes().size() == hole_count);
    }

    BlockPool pool;
    Arena arena{ArenaKey{}, kBase, Arena::kAlignmentBytes, kPage, pool};

private:
    std::vector<std::unique_ptr<Chunk>> chunks_;
};

}  // namespace gma
