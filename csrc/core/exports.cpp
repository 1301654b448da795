#include "core/exports.h"

#include "core/export_descriptors.h"

namespace gma {

Exports::~Exports() {
    for (const auto& [serial, file] : files_) { close_exported(file.descriptor); }
}

Result<ExportedBlock> Exports::add(Address address, Bytes bytes, const Arena& arena) {
    std::vector<const Chunk*> chunks;
    Serials serials;
    arena.for_each_chunk(address, address + bytes, [&](const Chunk* chunk) {
        chunks.push_back(chunk);
        serials.push_back(chunk->serial);
    });
    // Known already, unless a block that lay here was given back in a way that did not pass by.
    if (const auto known = blocks_.find(address);
        known != blocks_.end() && known->second != serials) {
        close_block(address);
    }
    if (!blocks_.contains(address)) {
        if (Status status = open_files(chunks); !status.ok()) {
            close_unused(serials);
            return status;
        }
        for (const std::uint64_t serial : serials) { ++files_[serial].block_count; }
        blocks_.emplace(address, serials);
    }
    ExportedBlock exported;
    exported.device = device_;
    exported.offset = address - chunks.front()->address;
    exported.bytes = bytes;
    Bytes total_bytes = 0;
    for (const Chunk* chunk : chunks) {
        exported.pieces.push_back({chunk->bytes, files_[chunk->serial].descriptor, chunk->serial});
        total_bytes += chunk->bytes;
    }
    exported.other_bytes = total_bytes - bytes;
    return exported;
}

Status Exports::open_files(const std::vector<const Chunk*>& chunks) {
    for (const Chunk* chunk : chunks) {
        if (files_.contains(chunk->serial)) { continue; }
        Result<int> descriptor = driver_.export_handle(device_, chunk->handle);
        if (!descriptor) { return descriptor.status(); }
        note_exported(*descriptor);
        files_.emplace(chunk->serial, File{*descriptor, 0});
    }
    return {};
}

bool Exports::close_block(Address address) {
    auto node = blocks_.extract(address);
    if (node.empty()) { return false; }
    for (const std::uint64_t serial : node.mapped()) { --files_[serial].block_count; }
    close_unused(node.mapped());
    return true;
}

void Exports::close_unused(const Serials& serials) {
    for (const std::uint64_t serial : serials) {
        const auto file = files_.find(serial);
        if (file == files_.end() || file->second.block_count > 0) { continue; }
        close_exported(file->second.descriptor);
        files_.erase(file);
    }
}

}  // namespace gma
