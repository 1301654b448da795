#include "torch/bridge/ipc_handle.h"

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <type_traits>

namespace gma::bridge {
namespace {

// PyTorch's own allocator takes the first character for a version and refuses one so large.
constexpr char kMagic[] = "gpumem_alloc";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kMagicBytes = sizeof(kMagic) - 1;

struct Head {
    std::uint32_t version = kVersion;
    std::int32_t pid = 0;
    std::uint64_t started = 0;
    std::uint64_t name_space = 0;
    std::uint64_t count = 0;
};
struct Piece {
    std::uint64_t bytes = 0;
    std::uint64_t serial = 0;
    std::int64_t descriptor = 0;
};
// Equal memory makes equal texts: no padding.
static_assert(std::has_unique_object_representations_v<Head> &&
              std::has_unique_object_representations_v<Piece>);

// PyTorch's: a version, a kind, and what the kind needs; in its first versions the last alone.
constexpr char kSegmentVersion = 1;
constexpr char kSegmentKind = 'c';

template <class T>
void append(std::string& text, const T& value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <class T>
T read_at(const std::string& text, std::size_t at) {
    TORCH_CHECK(at + sizeof(T) <= text.size(),
                "gpumem_alloc: a handle of memory of another process is cut off");
    T value;
    std::memcpy(&value, text.data() + at, sizeof(T));
    return value;
}

}  // namespace

ProcessIdentity this_process() {
    struct stat name_space = {};
    static_cast<void>(::stat("/proc/self/ns/pid", &name_space));
    const auto pid = static_cast<std::int32_t>(::getpid());
    return {pid, start_of(pid), static_cast<std::uint64_t>(name_space.st_ino)};
}

// The 22nd field of its state; the 2nd is a name in brackets, which may hold blanks.
std::uint64_t start_of(std::int32_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    if (!std::getline(file, text)) { return 0; }
    std::size_t at = text.rfind(')');
    for (int field = 2; field < 22 && at != std::string::npos; ++field) {
        at = text.find(' ', at + 1);
    }
    return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

std::string write_handle(const SharedMemory& memory) {
    std::string text(kMagic, kMagicBytes);
    append(text, Head{kVersion, memory.sender.pid, memory.sender.started, memory.sender.name_space,
                      memory.pieces.size()});
    for (const ExportedPiece& piece : memory.pieces) {
        append(text, Piece{piece.bytes, piece.serial, piece.descriptor});
    }
    return text;
}

std::optional<SharedMemory> read_handle(const std::string& handle) {
    if (handle.compare(0, kMagicBytes, kMagic) != 0) { return std::nullopt; }
    const auto head = read_at<Head>(handle, kMagicBytes);
    TORCH_CHECK(head.version == kVersion,
                "gpumem_alloc: the sender of this tensor has another version of gpumem_alloc.\n"
                "What it writes (",
                head.version, ") and what is read here (", kVersion,
                ") differ.\nInstall one version in both environments.");
    SharedMemory memory;
    memory.sender = {head.pid, head.started, head.name_space};
    std::size_t at = kMagicBytes + sizeof(Head);
    for (std::uint64_t i = 0; i < head.count; ++i, at += sizeof(Piece)) {
        const auto piece = read_at<Piece>(handle, at);
        memory.pieces.push_back({piece.bytes, static_cast<int>(piece.descriptor), piece.serial});
    }
    return memory;
}

std::string write_segment_handle(const std::string& cuda_handle) {
    return std::string{kSegmentVersion, kSegmentKind} + cuda_handle;
}

std::optional<std::string> read_segment_handle(const std::string& handle) {
    constexpr std::size_t kBytes = sizeof(cudaIpcMemHandle_t);
    if (handle.size() == kBytes) { return handle; }
    if (handle.size() == kBytes + 2 && handle[1] == kSegmentKind) { return handle.substr(2); }
    return std::nullopt;
}

}  // namespace gma::bridge
