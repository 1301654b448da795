#include "replay/native_model.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "driver/driver_costs.h"

namespace gma {

bool NativeModel::BySize::operator()(const Block* a, const Block* b) const {
    return std::tie(a->stream, a->bytes, a->address) < std::tie(b->stream, b->bytes, b->address);
}

bool NativeModel::ByAddress::operator()(const Block* a, const Block* b) const {
    return std::tie(a->stream, a->address) < std::tie(b->stream, b->address);
}

NativeModel::NativeModel(const NativeConfig& config, SegmentSource segments,
                         std::size_t block_count)
    : config_(config), segments_(std::move(segments)), blocks_(block_count, nullptr) {}

void NativeModel::adopt_segment(const RecordedSegment& segment, bool is_small) {
    FreeLists* lists = lists_of(segment.pool, is_small ? 1_B : 2 * kNativeSmallRequestBytes);
    Block* block = make_block(segment.address, segment.bytes, segment.stream, lists);
    lists->free.insert(block);
    hold(segment.bytes);
}

bool NativeModel::adopt_block(std::uint32_t id, Address address, Bytes requested_bytes) {
    const Bytes bytes = config_.block_bytes(requested_bytes);
    for (auto& [number, pool] : pools_) {
        for (FreeLists* lists : {&pool->small, &pool->large}) {
            const auto found =
                std::find_if(lists->free.begin(), lists->free.end(), [&](const Block* block) {
                    return block->address <= address &&
                           address + bytes <= block->address + block->bytes;
                });
            if (found == lists->free.end()) { continue; }
            Block* block = *found;
            lists->free.erase(found);
            if (block->address < address) {
                Block* front = block;
                block = carve(front, address - front->address)->next;
                lists->free.erase(block);
                block->state = State::Allocated;  // so that the front does not take it in
                to_free(front);
            }
            blocks_[id] = block->bytes == bytes ? block : carve(block, bytes);
            blocks_[id]->state = State::Allocated;
            return true;
        }
    }
    return false;
}

bool NativeModel::allocate(std::uint32_t id, Bytes requested_bytes, std::uint64_t stream,
                           std::uint32_t pool) {
    if (requested_bytes == 0) {
        return true;  // PyTorch hands out a null pointer and remembers nothing
    }
    const Bytes bytes = config_.block_bytes(requested_bytes);
    const Request request{bytes, config_.segment_bytes(bytes), stream, lists_of(pool, bytes)};
    Block* block = find_free(request);
    if (block == nullptr) {
        collect_garbage();
        block = grow(request);
    }
    if (block == nullptr && release_oversize(request)) { block = grow(request); }
    if (block == nullptr) {
        release_idle();
        ++retries_;
        block = grow(request);
    }
    if (block == nullptr) { return false; }
    block = splits(block, bytes) ? carve(block, bytes) : block;
    block->state = State::Allocated;
    blocks_[id] = block;
    return true;
}

void NativeModel::free(std::uint32_t id) {
    if (Block* block = std::exchange(blocks_[id], nullptr)) { to_free(block); }
}

void NativeModel::free_later(std::uint32_t id) {
    if (blocks_[id] != nullptr) {
        blocks_[id]->state = State::Pending;
        pending_.insert(id);
        charge(Call::Event, 0);
    }
}

void NativeModel::complete(std::uint32_t id) {
    if (pending_.erase(id) != 0) { free(id); }
}

NativeModel::Block* NativeModel::make_block(Address address, Bytes bytes, std::uint64_t stream,
                                            FreeLists* lists) {
    Block* block = nullptr;
    if (unused_.empty()) {
        block = &storage_.emplace_back();
    } else {
        block = unused_.back();
        unused_.pop_back();
    }
    *block = Block{.address = address, .bytes = bytes, .stream = stream, .lists = lists};
    return block;
}

void NativeModel::drop_block(Block* block) {
    block->lists = nullptr;
    unused_.push_back(block);
}

NativeModel::FreeLists* NativeModel::lists_of(std::uint32_t pool, Bytes block_bytes) {
    std::unique_ptr<Pool>& lists = pools_[pool];
    if (lists == nullptr) {
        lists = std::make_unique<Pool>();
        lists->small.is_small = true;
        lists->small.pool = lists->large.pool = pool;
    }
    return block_bytes <= kNativeSmallRequestBytes ? &lists->small : &lists->large;
}

void NativeModel::charge(Call call, Bytes bytes, std::uint64_t times) {
    totals_.counts[static_cast<std::size_t>(call)] += times;
    totals_.cost_ns += static_cast<double>(times) * call_cost_ns(call, bytes);
}

void NativeModel::hold(Bytes bytes) {
    held_bytes_ += bytes;
    peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
}

NativeModel::Block* NativeModel::find_free(const Request& request) {
    ++request.lists->searches;
    auto& free = request.lists->free;
    Block key{.address = 0, .bytes = request.bytes, .stream = request.stream};
    const auto best = free.lower_bound(&key);
    if (best == free.end() || (*best)->stream != request.stream) { return nullptr; }
    Block* block = config_.expandable ? prefer_nearly_full(*best, request) : *best;
    const bool oversize_request = request.bytes >= config_.max_split_bytes;
    if (!oversize_request && block->bytes >= config_.max_split_bytes) { return nullptr; }
    if (oversize_request && block->bytes - request.bytes >= config_.max_non_split_rounding_bytes) {
        return nullptr;
    }
    free.erase(block);
    return block;
}

NativeModel::Block* NativeModel::grow(const Request& request) {
    if (config_.expandable) { return grow_expandable(request); }
    charge(Call::Malloc, request.segment_bytes);
    if (request.segment_bytes > config_.limit_bytes - std::min(held_bytes_, config_.limit_bytes)) {
        return nullptr;
    }
    hold(request.segment_bytes);
    return make_block(segments_.take(request.segment_bytes, request.stream, request.lists->pool),
                      request.segment_bytes, request.stream, request.lists);
}

bool NativeModel::splits(const Block* block, Bytes bytes) const {
    const Bytes rest = block->bytes - bytes;
    if (block->lists->is_small || config_.expandable) { return rest >= kUnitBytes; }
    return bytes < config_.max_split_bytes && rest > kNativeSmallRequestBytes;
}

// The front of a block that is in no list; the rest becomes a free block.
NativeModel::Block* NativeModel::carve(Block* block, Bytes bytes) {
    Block* rest =
        make_block(block->address + bytes, block->bytes - bytes, block->stream, block->lists);
    rest->age_base = block->lists->searches;
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr) { rest->next->previous = rest; }
    block->next = rest;
    block->bytes = bytes;
    block->lists->free.insert(rest);
    return block;
}

void NativeModel::to_free(Block* block) {
    block->state = State::Free;
    merge(block, block->previous);
    merge(block, block->next);
    block->age_base = block->lists->searches;
    block->lists->free.insert(block);
}

// Takes in a neighbour of the same kind. `block` itself is in no list.
void NativeModel::merge(Block* block, Block* neighbour) {
    if (neighbour == nullptr || neighbour->state != State::Free ||
        neighbour->mapped != block->mapped) {
        return;
    }
    if (neighbour->mapped) {
        block->lists->free.erase(neighbour);
    } else {
        block->lists->unmapped.erase(neighbour);
    }
    if (neighbour == block->previous) {
        block->address = neighbour->address;
        block->previous = neighbour->previous;
        if (block->previous != nullptr) { block->previous->next = block; }
    } else {
        block->next = neighbour->next;
        if (block->next != nullptr) { block->next->previous = block; }
    }
    block->bytes += neighbour->bytes;
    drop_block(neighbour);
}

bool NativeModel::audit() const {
    Bytes held = 0;
    for (const Block& block : storage_) {
        if (block.lists == nullptr) { continue; }
        held += block.mapped ? block.bytes : 0;
        const Block* next = block.next;
        if (next == nullptr) { continue; }
        const bool tiles = next->previous == &block && next->address == block.address + block.bytes;
        const bool unmerged = block.state == State::Free && next->state == State::Free &&
                              block.mapped == next->mapped;
        if (!tiles || unmerged) { return false; }
    }
    return held == held_bytes_ && held_bytes_ <= peak_held_bytes_;
}

}  // namespace gma
