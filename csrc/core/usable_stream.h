// On which stream the memory of a stream can be filled or checked.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "driver/driver.h"

namespace gma {

struct UsableStream {
    Stream stream = nullptr;
    bool stands_in = false;  // for one that is gone, or did not answer: nothing orders them
};

// A destroyed stream's handle names nothing, or another stream: then the host waits for all work of
// the device, and the default stream serves. Where that fails, nothing may be filled or checked.
inline Result<UsableStream> usable_stream(Driver& driver, int device, Stream stream,
                                          std::uint64_t stream_id) {
    if (stream == nullptr) { return UsableStream{}; }
    const Result<std::uint64_t> id = driver.stream_id(device, stream);
    if (id && *id == stream_id) { return UsableStream{stream, false}; }
    if (Status status = driver.synchronize_device(device); !status.ok()) { return status; }
    return UsableStream{nullptr, true};
}

// After what was queued: the stream's later work comes after it.
inline Status order_before_others(Driver& driver, int device, const UsableStream& used) {
    return used.stands_in ? driver.synchronize_device(device) : Status();
}

}  // namespace gma
