// The device's blocks for other processes.
#include "core/device_heap.h"

namespace gma {

// A small object is marked as if a stream had been recorded, so that its free comes to
// free_recorded_object(), which ends the export.
Result<ExportedBlock> DeviceHeap::export_block(Address address, std::uintptr_t tagged) {
    std::lock_guard guard(lock_);
    const Block* block = block_locked(address, tagged);
    if (block == nullptr || block->kind != TileKind::Used) {
        return Status(Code::InvalidValue, "no allocated block starts at this address");
    }
    if (block->arena == nullptr) {
        return Status(Code::NotSupported,
                      "this block lies in a driver segment, which has no file descriptor");
    }
    auto* slab = (tagged & 1) != 0 ? reinterpret_cast<Slab*>(tagged - 1) : nullptr;
    const Bytes bytes = slab != nullptr ? slab->object_bytes : block->bytes;
    Result<ExportedBlock> exported = exports_.add(address, bytes, *block->arena);
    if (exported && slab != nullptr) {
        static_cast<void>(slab->cache->set_recorded(slab, address));
        pending_.expect(address);
    }
    return exported;
}

}  // namespace gma
