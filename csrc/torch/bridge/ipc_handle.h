// How a block is described to another process: a text that torch carries unread. It names the
// sender and, for each piece of memory, the number of the sender's file descriptor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/allocator.h"

namespace gma::bridge {

// A process, wherever its number is seen from and however often that number was used.
struct ProcessIdentity {
    std::int32_t pid = 0;
    std::uint64_t started = 0;     // in ticks since the machine's start
    std::uint64_t name_space = 0;  // that its number belongs to
    friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};
ProcessIdentity this_process();
// 0: there is no such process.
std::uint64_t start_of(std::int32_t pid);

struct SharedMemory {
    ProcessIdentity sender;
    std::vector<ExportedPiece> pieces;  // with the sender's descriptors
};

std::string write_handle(const SharedMemory& memory);
// Empty: the text is not one of ours. Throws c10::Error for one of ours that cannot be read.
std::optional<SharedMemory> read_handle(const std::string& handle);

// What PyTorch's own allocator writes for memory of cudaMalloc, and all versions of it read.
std::string write_segment_handle(const std::string& cuda_handle);
// The cudaIpcMemHandle_t in such a text. Empty: it is another kind.
std::optional<std::string> read_segment_handle(const std::string& handle);

}  // namespace gma::bridge
