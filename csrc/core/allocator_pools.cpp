// The allocator's doors for private pools and captures.
#include <utility>

#include "core/audited_call.h"
#include "core/core_allocator.h"

namespace gma {

Status CoreAllocator::begin_pool(int device, PoolId pool, std::function<bool(Stream)> filter) {
    GMA_AUDITED_CALL;
    return ask<Status>(device,
                       [&](DeviceHeap& heap) { return heap.begin_pool(pool, std::move(filter)); });
}

Status CoreAllocator::end_pool(int device, PoolId pool) {
    GMA_AUDITED_CALL;
    return ask<Status>(device, [&](DeviceHeap& heap) { return heap.end_pool(pool); });
}

Status CoreAllocator::retain_pool(int device, PoolId pool,
                                  std::shared_ptr<SegmentProvider> provider) {
    GMA_AUDITED_CALL;
    return ask<Status>(
        device, [&](DeviceHeap& heap) { return heap.retain_pool(pool, std::move(provider)); });
}

Status CoreAllocator::release_pool(int device, PoolId pool) {
    GMA_AUDITED_CALL;
    return ask<Status>(device, [&](DeviceHeap& heap) { return heap.release_pool(pool); });
}

std::uint64_t CoreAllocator::pool_use_count(int device, PoolId pool) {
    return usable(device) ? heap_of(device).pool_use_count(pool) : 0;
}

Status CoreAllocator::set_pool_use_on_oom(int device, PoolId pool, bool use) {
    return ask<Status>(device,
                       [&](DeviceHeap& heap) { return heap.set_pool_use_on_oom(pool, use); });
}

Status CoreAllocator::set_pool_no_split(int device, PoolId pool) {
    return ask<Status>(device, [&](DeviceHeap& heap) { return heap.set_pool_no_split(pool); });
}

Result<Bytes> CoreAllocator::trim_pool(int device, PoolId pool) {
    GMA_AUDITED_CALL;
    return ask<Result<Bytes>>(device, [&](DeviceHeap& heap) { return heap.trim_pool(pool); });
}

std::vector<PoolBytes> CoreAllocator::pool_bytes(int device) {
    return usable(device) ? heap_of(device).pool_bytes() : std::vector<PoolBytes>{};
}

Result<std::vector<PoolBlock>> CoreAllocator::pool_state(int device, PoolId pool) {
    return ask<Result<std::vector<PoolBlock>>>(
        device, [&](DeviceHeap& heap) { return heap.pool_state(pool); });
}

Result<PoolChange> CoreAllocator::restore_pool(int device, PoolId pool,
                                               const std::vector<PoolBlock>& state) {
    GMA_AUDITED_CALL;
    return ask<Result<PoolChange>>(device, [&](DeviceHeap& heap) -> Result<PoolChange> {
        if (!listeners_.ring.on()) { return heap.restore_pool(pool, state); }
        const Result<std::vector<PoolBlock>> before = heap.pool_state(pool);
        Result<PoolChange> change = heap.restore_pool(pool, state);
        if (!change || !before) { return change; }
        note_blocks(device, pool, *before, Action::Free);
        note_blocks(device, pool, state, Action::Alloc);
        return change;
    });
}

void CoreAllocator::note_blocks(int device, PoolId pool, const std::vector<PoolBlock>& blocks,
                                Action action) {
    for (const PoolBlock& block : blocks) {
        TraceRecord record;
        record.action = action;
        record.device = static_cast<std::int16_t>(device);
        record.address = block.address;
        record.bytes = block.requested_bytes;
        record.pool_first = static_cast<std::uint32_t>(pool.first);
        record.pool_second = static_cast<std::uint32_t>(pool.second);
        listeners_.ring.add(record);
    }
}

void CoreAllocator::begin_capture(int device) {
    if (usable(device)) { heap_of(device).begin_capture(); }
}

void CoreAllocator::end_capture(int device) {
    if (usable(device)) { heap_of(device).end_capture(); }
}

}  // namespace gma
