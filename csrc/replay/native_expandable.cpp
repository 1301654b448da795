// The expandable segments of the native policy: one range of addresses per stream and size class,
// mapped page by page from its front and unmapped only when memory has run out.
#include <algorithm>

#include "replay/native_model.h"

namespace gma {

Bytes NativeModel::page_bytes(const FreeLists& lists) const {
    return lists.is_small ? kNativeSmallSegmentBytes : config_.large_segment_bytes;
}

// A block that can still grow counts with the size it could have, so a block that cannot is
// preferred as long as the next larger ones have less room to grow.
NativeModel::Block* NativeModel::prefer_nearly_full(Block* found, const Request& request) const {
    const auto room = [](const Block* block) {
        const Block* next = block->next;
        return block->bytes + (next != nullptr && !next->mapped ? next->bytes : 0);
    };
    const auto& free = request.lists->free;
    auto at = free.find(found);
    for (auto next = std::next(at);
         next != free.end() && (*next)->stream == request.stream && room(*next) < room(*at);
         ++next) {
        at = next;
    }
    return *at;
}

NativeModel::Block* NativeModel::grow_expandable(const Request& request) {
    Block* block = expandable_room(request);
    if (!block->mapped && !map_front(block, std::min(block->bytes, request.bytes))) {
        return nullptr;
    }
    while (block->bytes < request.bytes) {
        Block* rest = block->next;
        const Bytes missing_bytes = request.bytes - block->bytes;
        if (!map_front(rest, std::min(rest->bytes, missing_bytes))) { return nullptr; }
        block = rest;  // it has taken in what lies before it
    }
    request.lists->free.erase(block);
    return block;
}

// The first unmapped range, with the free blocks around it, that is long enough; else a new one.
NativeModel::Block* NativeModel::expandable_room(const Request& request) {
    const auto is_free = [](const Block* block) {
        return block != nullptr && block->state == State::Free;
    };
    auto& unmapped = request.lists->unmapped;
    Block key{.address = 0, .bytes = 0, .stream = request.stream};
    for (auto at = unmapped.lower_bound(&key);
         at != unmapped.end() && (*at)->stream == request.stream; ++at) {
        Block* first = is_free((*at)->previous) ? (*at)->previous : *at;
        Bytes bytes = 0;
        for (Block* block = first; bytes < request.bytes && is_free(block); block = block->next) {
            bytes += block->bytes;
        }
        if (bytes >= request.bytes) { return first; }
    }
    const Bytes page = page_bytes(*request.lists);  // its pages count from the range's start
    const Bytes wanted_bytes = std::max(config_.card_bytes / 8 * 9, 2 * request.segment_bytes);
    next_reservation_ = round_up(next_reservation_, page);
    Block* range =
        make_block(next_reservation_, round_up(wanted_bytes, page), request.stream, request.lists);
    next_reservation_ += range->bytes;
    range->mapped = false;
    unmapped.insert(range);
    return range;
}

// Maps the pages under the first `bytes` of an unmapped block; it then takes in free neighbours.
bool NativeModel::map_front(Block* block, Bytes bytes) {
    FreeLists& lists = *block->lists;
    const Bytes page = page_bytes(lists);
    const Bytes mapped_bytes = round_up(bytes, page);
    const Bytes room_bytes = config_.limit_bytes - std::min(held_bytes_, config_.limit_bytes);
    if (mapped_bytes > room_bytes) {
        // The driver is asked for page after page until one fails; then all are given back.
        charge(Call::Create, page, room_bytes / page + 1);
        charge(Call::Release, page, room_bytes / page);
        return false;
    }
    const std::uint64_t pages = mapped_bytes / page;
    charge(Call::Create, page, pages);
    charge(Call::Map, page, pages);
    charge(Call::SetAccess, page, pages);
    hold(mapped_bytes);
    lists.unmapped.erase(block);
    block->mapped = true;
    if (mapped_bytes < block->bytes) {
        carve(block, mapped_bytes);
        Block* rest = block->next;
        lists.free.erase(rest);
        rest->mapped = false;
        lists.unmapped.insert(rest);
    }
    to_free(block);
    return true;
}

void NativeModel::unmap_whole_pages(Block* block) {
    FreeLists& lists = *block->lists;
    const Bytes page = page_bytes(lists);
    const Address begin = round_up(block->address, page);
    const Address end = round_down(block->address + block->bytes, page);
    if (begin >= end) { return; }
    const std::uint64_t pages = (end - begin) / page;
    charge(Call::Synchronize, 0);
    charge(Call::Unmap, page, pages);
    charge(Call::Release, page, pages);
    held_bytes_ -= end - begin;
    lists.free.erase(block);
    if (begin > block->address) {
        Block* front = block;
        block = carve(front, begin - front->address)->next;
        lists.free.erase(block);
        lists.free.insert(front);
    }
    if (end < block->address + block->bytes) { carve(block, end - block->address); }
    block->mapped = false;
    merge(block, block->previous);
    merge(block, block->next);
    lists.unmapped.insert(block);
}

}  // namespace gma
