#include "core/chunk_store.h"

#include <algorithm>

namespace gma {

ChunkStore::~ChunkStore() {
    for (Chunk* chunk : chunks_) { delete chunk; }
}

Bytes ChunkStore::spare_bytes() const {
    Bytes sum = 0;
    for (const Chunk* chunk : spares_) { sum += chunk->bytes; }
    return sum;
}

std::vector<Chunk*> ChunkStore::chunks() const {
    std::vector<Chunk*> all(chunks_.begin(), chunks_.end());
    std::sort(all.begin(), all.end(),
              [](const Chunk* a, const Chunk* b) { return a->serial < b->serial; });
    return all;
}

Result<Chunk*> ChunkStore::create(Bytes bytes) {
    Result<Handle> handle = driver_.create(device_, bytes);
    if (!handle) { return handle.status(); }
    Chunk* chunk = new Chunk;
    chunk->handle = *handle;
    chunk->bytes = bytes;
    chunks_.insert(chunk);
    spares_.push_back(chunk);
    reserved_bytes_ += bytes;
    ++change_count_;
    chunk->serial = static_cast<std::uint64_t>(++created_count_);
    return chunk;
}

Status ChunkStore::map(Chunk* chunk, Arena* arena, Address address, Undo& undo) {
    if (Status status = driver_.map(address, chunk->bytes, chunk->handle); !status.ok()) {
        return status;
    }
    if (Status status = driver_.set_access(device_, address, chunk->bytes); !status.ok()) {
        undo = driver_.unmap(address, chunk->bytes).ok() ? Undo::Done : Undo::Refused;
        return status;
    }
    if (chunk->arena == nullptr) {
        spares_.erase(std::find(spares_.begin(), spares_.end(), chunk));
    }
    chunk->arena = arena;
    chunk->address = address;
    ++change_count_;
    tell(Action::SegmentMap, *arena, address, chunk->bytes);
    return {};
}

Status ChunkStore::unmap(const Arena& arena, Address address, Bytes bytes, Made made) {
    Status status = driver_.unmap(address, bytes);
    if (status.ok() && made == Made::Whole) { tell(Action::SegmentUnmap, arena, address, bytes); }
    return status;
}

void ChunkStore::tell(Action action, const Arena& arena, Address address, Bytes bytes) const {
    listeners_.tell_segment(action, device_, address, bytes, arena.key().stream, arena.key().pool);
}

void ChunkStore::set_spare(Chunk* chunk) {
    chunk->arena = nullptr;
    chunk->address = 0;
    chunk->freed_at = 0;
    ++change_count_;
    spares_.push_back(chunk);
}

void ChunkStore::sort_spares() {
    std::sort(spares_.begin(), spares_.end(),
              [](const Chunk* a, const Chunk* b) { return a->serial < b->serial; });
}

Status ChunkStore::release(Chunk* chunk) {
    if (chunk->arena == nullptr) {
        spares_.erase(std::find(spares_.begin(), spares_.end(), chunk));
    }
    Status status = driver_.release(device_, chunk->handle, chunk->bytes);
    if (status.ok()) {
        ++released_count_;
    } else {
        ++leaked_count_;
    }
    reserved_bytes_ -= chunk->bytes;
    ++change_count_;
    chunks_.erase(chunk);
    delete chunk;
    return status;
}

void ChunkStore::release_all() {
    for (Chunk* chunk : chunks()) {
        if (chunk->arena != nullptr) {
            static_cast<void>(unmap(*chunk->arena, chunk->address, chunk->bytes));
            set_spare(chunk);
        }
        static_cast<void>(release(chunk));
    }
}

}  // namespace gma
