// The device's blocks for other processes.
#include "core/device_heap.h"

namespace gma {

// The free of an exported block has to come by here, to end the export: a pinned block is not
// parked by its thread, and a small object is marked as if a stream had been recorded.
Result<ExportedBlock> DeviceHeap::export_block(Address address, std::uintptr_t tagged) {
    std::lock_guard guard(lock_);
    Block* block = block_locked(address, tagged);
    if (block == nullptr || block->kind != TileKind::Used) {
        return Status(Code::InvalidValue, "no allocated block starts at this address");
    }
    if (block->arena == nullptr) {
        return Status(Code::NotSupported,
                      "this block lies in a driver segment, which has no file descriptor");
    }
    auto* slab = (tagged & 1) != 0 ? reinterpret_cast<Slab*>(tagged - 1) : nullptr;
    const Bytes bytes = slab != nullptr ? slab->object_bytes : block->bytes;
    const bool is_new = !exports_.contains(address);
    Result<ExportedBlock> exported = exports_.add(address, bytes, *block->arena);
    if (!exported || !is_new) { return exported; }
    if (slab == nullptr) {
        strategy_->pin(block);
    } else {
        static_cast<void>(slab->cache->set_recorded(slab, address));
        pending_.expect(address);
    }
    return exported;
}

}  // namespace gma
