// On which stream the memory of a stream can be filled or checked.
#pragma once

#include <cstdint>

#include "driver/driver.h"

namespace gma {

// A destroyed stream's handle names nothing, or another stream: then the host waits for all work of
// the device, and the default stream serves.
inline Stream usable_stream(Driver& driver, int device, Stream stream, std::uint64_t stream_id) {
    if (stream == nullptr) { return nullptr; }
    const Result<std::uint64_t> id = driver.stream_id(device, stream);
    if (id && *id == stream_id) { return stream; }
    static_cast<void>(driver.synchronize_device(device));
    return nullptr;
}

}  // namespace gma
