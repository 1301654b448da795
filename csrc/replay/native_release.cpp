// How the model of the native policy gives memory back to the driver.
#include "replay/native_model.h"

namespace gma {

// Frees whole large segments that were not used for longer than the average, until what is held is
// below the threshold. PyTorch does this only when a limit was set.
void NativeModel::collect_garbage() {
    if (config_.garbage_collection_threshold <= 0.0 || config_.limit_bytes == kUnlimitedBytes) {
        return;
    }
    const Bytes threshold = static_cast<Bytes>(config_.garbage_collection_threshold *
                                               static_cast<double>(config_.limit_bytes));
    if (held_bytes_ <= threshold || config_.expandable) { return; }
    FreeLists& lists = *lists_of(0, 2 * kNativeSmallRequestBytes);
    const Bytes target_bytes = held_bytes_ - threshold;
    const auto is_whole = [](const Block* block) { return !block->previous && !block->next; };
    const auto age = [&](const Block* block) { return lists.searches - block->age_base; };
    std::uint64_t total_age = 0;
    std::uint64_t count = 0;
    for (const Block* block : lists.free) {
        total_age += is_whole(block) ? age(block) : 0;
        count += is_whole(block) ? 1 : 0;
    }
    Bytes freed_bytes = 0;
    bool freed_one = true;
    while (freed_bytes < target_bytes && freed_one && count > 0) {
        const double average = static_cast<double>(total_age) / static_cast<double>(count);
        freed_one = false;
        for (auto at = lists.free.begin(); at != lists.free.end();) {
            Block* block = *at++;
            if (is_whole(block) && static_cast<double>(age(block)) >= average) {
                freed_one = true;
                freed_bytes += block->bytes;
                total_age -= age(block);
                --count;
                release_segment(block);
            }
        }
    }
}

// With max_split_size_mb: one free block above it that is large enough, or the largest ones until
// enough is free. False if that cannot help.
bool NativeModel::release_oversize(const Request& request) {
    if (config_.max_split_bytes == kUnlimitedBytes || config_.expandable) { return false; }
    auto& free = request.lists->free;
    const Bytes wanted_bytes =
        request.bytes < config_.max_split_bytes ? config_.max_split_bytes : request.bytes;
    Block key{.address = 0, .bytes = wanted_bytes, .stream = request.stream};
    auto at = free.lower_bound(&key);
    if (at != free.end() && (*at)->stream == request.stream) {
        release_segment(*at);
        return true;
    }
    Bytes released_bytes = 0;
    while (released_bytes < wanted_bytes && at != free.begin()) {
        Block* largest = *--at;
        if (largest->stream != request.stream || largest->bytes < config_.max_split_bytes) {
            break;
        }
        released_bytes += largest->bytes;
        at = free.upper_bound(largest);
        release_segment(largest);
    }
    return released_bytes >= wanted_bytes;
}

// Everything that no block uses, after waiting for the streams that still use freed blocks.
void NativeModel::release_idle() {
    wait_for_pending();
    for (auto& [number, pool] : pools_) {
        if (number != 0) {
            continue;  // a pool's memory stays its own until the pool is released
        }
        for (FreeLists* lists : {&pool->large, &pool->small}) {
            const std::vector<Block*> idle(lists->free.begin(), lists->free.end());
            for (Block* block : idle) {
                if (config_.expandable) {
                    unmap_whole_pages(block);
                } else if (block->previous == nullptr && block->next == nullptr) {
                    release_segment(block);
                }
            }
        }
    }
}

void NativeModel::release_segment(Block* block) {
    block->lists->free.erase(block);
    held_bytes_ -= block->bytes;
    charge(Call::Free, block->bytes);
    drop_block(block);
}

void NativeModel::wait_for_pending() {
    for (const std::uint32_t id : pending_) {
        charge(Call::Synchronize, 0);
        free(id);
    }
    pending_.clear();
}

}  // namespace gma
