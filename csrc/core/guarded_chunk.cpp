#include "core/guarded_chunk.h"

#include <utility>

namespace gma {

Status map_chunks(Driver& driver, int device, Address at, std::vector<GuardedChunk>& chunks) {
    const Address begin = at;
    for (GuardedChunk& chunk : chunks) {
        Status status = driver.map(at, chunk.bytes, chunk.handle);
        if (!status.ok()) { return status; }
        chunk.mapped = true;
        at += chunk.bytes;
    }
    return driver.set_access(device, begin, at - begin, Reach::Private);
}

Status unmap_chunks(Driver& driver, Address at, LastPlace last, std::vector<GuardedChunk>& chunks) {
    Status first;
    for (GuardedChunk& chunk : chunks) {
        const Address address = std::exchange(at, at + chunk.bytes);
        if (!chunk.mapped) { continue; }
        Status status = driver.unmap(address, chunk.bytes);
        chunk.mapped = !status.ok();
        if (last == LastPlace::Note) { chunk.last_begin = address; }
        if (!status.ok() && first.ok()) { first = std::move(status); }
    }
    return first;
}

}  // namespace gma
