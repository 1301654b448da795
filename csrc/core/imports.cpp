#include "core/imports.h"

#include <algorithm>
#include <iterator>

namespace gma {

Imports::~Imports() {
    for (std::list<Import>* list : {&imports_, &dropped_}) {
        for (Import& import : *list) { static_cast<void>(undo(import)); }
    }
}

Result<Address> Imports::add(int device, const std::vector<ExportedPiece>& pieces) {
    const std::lock_guard guard(mutex_);
    retry_dropped();
    Import import;
    import.device = device;
    for (const ExportedPiece& piece : pieces) {
        if (piece.bytes == 0 || piece.bytes >= kMaxRequestBytes - import.bytes) {
            return Status(Code::InvalidValue, "a piece of what is imported has an impossible size");
        }
        import.bytes += piece.bytes;
    }
    if (import.bytes == 0) { return Status(Code::InvalidValue, "nothing to import"); }
    const Result<DeviceProperties> properties = driver_.properties(device);
    if (!properties) { return properties.status(); }
    if (properties->page_bytes == 0) {
        return Status(Code::NotSupported, "this device cannot map memory of another process");
    }
    Result<Address> address = driver_.reserve(device, import.bytes, properties->page_bytes);
    if (!address) { return address; }
    import.address = *address;
    if (Status status = fill(import, pieces); !status.ok()) {
        if (!undo(import).ok()) { dropped_.push_back(std::move(import)); }
        return status;
    }
    imports_.push_back(std::move(import));
    return *address;
}

Status Imports::fill(Import& import, const std::vector<ExportedPiece>& pieces) {
    Address at = import.address;
    for (const ExportedPiece& wanted : pieces) {
        Result<Handle> handle =
            driver_.import_handle(import.device, wanted.descriptor, wanted.bytes);
        if (!handle) { return handle.status(); }
        Piece& piece = import.pieces.emplace_back(Piece{at, wanted.bytes, *handle, false, true});
        if (Status status = driver_.map(at, piece.bytes, piece.handle); !status.ok()) {
            return status;
        }
        piece.is_mapped = true;
        piece.has_handle = !driver_.release(import.device, piece.handle, piece.bytes).ok();
        at += piece.bytes;
    }
    return driver_.set_access(import.device, import.address, import.bytes);
}

// What is queued on the device may still use it, on whatever stream.
Status Imports::drop(Address address) {
    const std::lock_guard guard(mutex_);
    const auto found = std::find_if(imports_.begin(), imports_.end(), [address](const Import& one) {
        return one.address == address;
    });
    if (found == imports_.end()) {
        return {Code::InvalidValue, "no memory of another process is mapped at this address"};
    }
    dropped_.splice(dropped_.end(), imports_, found);
    retry_dropped();
    return {};
}

void Imports::retry_dropped() {
    for (auto import = dropped_.begin(); import != dropped_.end();) {
        const bool is_done = driver_.synchronize_device(import->device).ok() && undo(*import).ok();
        import = is_done ? dropped_.erase(import) : std::next(import);
    }
}

// Goes on from where it stopped the last time.
Status Imports::undo(Import& import) {
    for (Piece& piece : import.pieces) {
        if (piece.is_mapped) {
            Status status = driver_.unmap(piece.address, piece.bytes);
            if (!status.ok()) { return status; }
            piece.is_mapped = false;
        }
        if (piece.has_handle) {
            Status status = driver_.release(import.device, piece.handle, piece.bytes);
            if (!status.ok()) { return status; }
            piece.has_handle = false;
        }
    }
    return driver_.unreserve(import.address, import.bytes);
}

}  // namespace gma
