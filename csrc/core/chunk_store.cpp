// Note [Kept mappings]: two mappings of one handle are legal, and addresses are plentiful. So the
// old mapping of a chunk that has moved is not undone once its fence has passed: it is left where
// it is, in a Hole, until another chunk is mapped there or the chunk is released. Work that comes
// in turns moves the same chunks to and fro between the same places, and there a move is no call.
// What was kept when all had gone home (Note [Homes]) has no say in what the next round chooses, so
// that it chooses as the one before; as it does, it finds its mappings there.
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
    Result<Handle> handle = driver_.create(device_, bytes, reach_);
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
    const auto there = kept_.find(address);
    if (there != kept_.end() && there->second.chunk == chunk) {
        std::erase(chunk->kept, address);
        kept_.erase(there);
    } else {
        if (Status status = end_kept(address, address + chunk->bytes); !status.ok()) {
            return status;
        }
        if (Status status = driver_.map(address, chunk->bytes, chunk->handle); !status.ok()) {
            return status;
        }
        if (Status status = driver_.set_access(device_, address, chunk->bytes, reach_);
            !status.ok()) {
            undo = driver_.unmap(address, chunk->bytes).ok() ? Undo::Done : Undo::Refused;
            return status;
        }
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

void ChunkStore::leave(Chunk* chunk, const Arena& arena, Address address) {
    if (chunk->kept.size() >= kKeptPerChunk) {
        static_cast<void>(end_kept(kept_.find(chunk->kept.front())));
    }
    chunk->kept.push_back(address);
    kept_[address] = {chunk, chunk->bytes, round_};
    tell(Action::SegmentUnmap, arena, address, chunk->bytes);
}

// The first that ends after `address`.
ChunkStore::KeptMap::const_iterator ChunkStore::first_kept(Address address) const {
    auto it = kept_.upper_bound(address);
    if (it != kept_.begin()) {
        const auto before = std::prev(it);
        if (before->first + before->second.bytes > address) { it = before; }
    }
    return it;
}

bool ChunkStore::ends_kept(const Chunk* chunk, Address begin, Address end) const {
    const auto it = first_kept(begin);
    if (it == kept_.end() || it->first >= end) { return false; }
    return chunk == nullptr || it->second.chunk != chunk || it->first != begin;
}

Address ChunkStore::kept_end(Address begin, Address end) const {
    const auto after = kept_.lower_bound(end);
    if (after == kept_.begin() || std::prev(after)->first < begin) { return begin; }
    const auto& [address, last] = *std::prev(after);
    return address + last.bytes;
}

// One that the driver refuses to end stays as it is.
Status ChunkStore::end_kept(KeptMap::const_iterator kept) {
    Status status = driver_.unmap(kept->first, kept->second.bytes);
    if (status.ok()) {
        std::erase(kept->second.chunk->kept, kept->first);
        kept_.erase(kept);
    }
    return status;
}

Status ChunkStore::end_kept(const Chunk* chunk) {
    while (!chunk->kept.empty()) {
        if (Status status = end_kept(kept_.find(chunk->kept.back())); !status.ok()) {
            return status;
        }
    }
    return {};
}

Status ChunkStore::end_kept(Address begin, Address end) {
    for (auto it = first_kept(begin); it != kept_.end() && it->first < end;) {
        const auto next = std::next(it);
        if (Status status = end_kept(it); !status.ok()) { return status; }
        it = next;
    }
    return {};
}

void ChunkStore::tell(Action action, const Arena& arena, Address address, Bytes bytes) const {
    listeners_.tell_segment(action, device_, address, bytes, arena.key().stream, arena.key().pool);
}

void ChunkStore::set_spare(Chunk* chunk) {
    chunk->arena = nullptr;
    chunk->address = 0;
    chunk->freed_at = 0;
    chunk->borrowed_uses.clear();
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
    for (Address address : chunk->kept) { kept_.erase(address); }  // refused, at the very end
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
        static_cast<void>(end_kept(chunk));
        if (chunk->arena != nullptr) {
            static_cast<void>(unmap(*chunk->arena, chunk->address, chunk->bytes));
            set_spare(chunk);
        }
        static_cast<void>(release(chunk));
    }
}

}  // namespace gma
