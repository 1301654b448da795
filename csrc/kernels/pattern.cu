// Writes a pattern, and looks whether it is still there: a warp for each piece, 16 bytes a lane
// where the addresses allow it, single bytes at both ends.
#include "kernels/pattern.h"

namespace {

using gma::kWholePieceBytes;
using gma::LookArguments;
using gma::PatternArguments;
using gma::PatternFinding;
using gma::PatternPiece;
using gma::SweepArguments;

constexpr unsigned kLanes = 32;
constexpr unsigned kAllLanes = 0xffff'ffff;
constexpr std::uint64_t kVectorBytes = sizeof(uint4);
constexpr std::uint64_t kStrideBytes = kLanes * kVectorBytes;
constexpr std::uint64_t kNowhere = ~0ULL;

__device__ unsigned lane() { return threadIdx.x % kLanes; }

__device__ unsigned piece_index() {
    return blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes;
}

__device__ unsigned char pattern_byte(std::uint32_t pattern, std::uint64_t address) {
    return static_cast<unsigned char>(pattern >> (address % 4 * 8));
}

template <class T>
__device__ T& at(std::uint64_t address) {
    return *reinterpret_cast<T*>(address);
}

// The whole vectors of a piece; what lies before and behind is single bytes.
struct Vectors {
    std::uint64_t begin;
    std::uint64_t end;
};

__device__ Vectors vectors_of(const PatternPiece& piece) {
    const std::uint64_t up = (piece.begin + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
    const std::uint64_t begin = min(up, piece.end);
    return {begin, max(begin, piece.end / kVectorBytes * kVectorBytes)};
}

__device__ void fill_bytes(std::uint64_t begin, std::uint64_t end, std::uint32_t pattern) {
    for (std::uint64_t address = begin + lane(); address < end; address += kLanes) {
        at<unsigned char>(address) = pattern_byte(pattern, address);
    }
}

// What one lane has seen.
struct Seen {
    std::uint64_t first_bad = kNowhere;
    std::uint64_t bad_bytes = 0;
};

__device__ void look_at_byte(std::uint64_t address, std::uint32_t pattern, Seen& seen) {
    if (at<const unsigned char>(address) != pattern_byte(pattern, address)) {
        seen.first_bad = min(seen.first_bad, address);
        ++seen.bad_bytes;
    }
}

__device__ void look_at_bytes(std::uint64_t begin, std::uint64_t end, std::uint32_t pattern,
                              Seen& seen) {
    for (std::uint64_t address = begin + lane(); address < end; address += kLanes) {
        look_at_byte(address, pattern, seen);
    }
}

__device__ std::uint32_t difference(std::uint64_t address, std::uint32_t pattern) {
    const uint4 vector = at<const uint4>(address);
    return (vector.x ^ pattern) | (vector.y ^ pattern) | (vector.z ^ pattern) |
           (vector.w ^ pattern);
}

__device__ void look_at_vector(std::uint64_t address, std::uint32_t pattern, Seen& seen) {
    for (std::uint64_t byte = 0; byte < kVectorBytes; ++byte) {
        look_at_byte(address + byte, pattern, seen);
    }
}

__device__ void look_at_vectors(const Vectors& vectors, std::uint32_t pattern, Seen& seen) {
    std::uint64_t address = vectors.begin + lane() * kVectorBytes;
    // Four loads on their way at a time.
    for (; address + 3 * kStrideBytes < vectors.end; address += 4 * kStrideBytes) {
        const std::uint32_t differs = difference(address, pattern) |
                                      difference(address + kStrideBytes, pattern) |
                                      difference(address + 2 * kStrideBytes, pattern) |
                                      difference(address + 3 * kStrideBytes, pattern);
        for (unsigned step = 0; differs != 0 && step < 4; ++step) {
            look_at_vector(address + step * kStrideBytes, pattern, seen);
        }
    }
    for (; address < vectors.end; address += kStrideBytes) {
        if (difference(address, pattern) != 0) { look_at_vector(address, pattern, seen); }
    }
}

__device__ Seen of_all_lanes(Seen seen) {
    for (unsigned step = kLanes / 2; step > 0; step /= 2) {
        seen.first_bad = min(seen.first_bad, __shfl_xor_sync(kAllLanes, seen.first_bad, step));
        seen.bad_bytes += __shfl_xor_sync(kAllLanes, seen.bad_bytes, step);
    }
    return seen;
}

__device__ std::uint32_t bytes_from(std::uint64_t first, std::uint64_t end) {
    std::uint32_t found = 0;
    for (unsigned byte = 0; byte < 4 && first + byte < end; ++byte) {
        found |= static_cast<std::uint32_t>(at<const unsigned char>(first + byte)) << (byte * 8);
    }
    return found;
}

__device__ void fill(const PatternPiece& piece, std::uint32_t pattern) {
    const Vectors vectors = vectors_of(piece);
    fill_bytes(piece.begin, vectors.begin, pattern);
    const uint4 vector = make_uint4(pattern, pattern, pattern, pattern);
    for (std::uint64_t address = vectors.begin + lane() * kVectorBytes; address < vectors.end;
         address += kStrideBytes) {
        at<uint4>(address) = vector;
    }
    fill_bytes(vectors.end, piece.end, pattern);
}

// By a whole warp, or by none of it.
__device__ void look_at(const PatternPiece& piece, std::uint32_t pattern, PatternFinding& finding,
                        std::uint32_t* is_any_bad) {
    const Vectors vectors = vectors_of(piece);
    Seen seen;
    look_at_bytes(piece.begin, vectors.begin, pattern, seen);
    look_at_vectors(vectors, pattern, seen);
    look_at_bytes(vectors.end, piece.end, pattern, seen);
    if (__ballot_sync(kAllLanes, seen.bad_bytes != 0) == 0) { return; }
    seen = of_all_lanes(seen);
    if (lane() == 0) {
        const std::uint32_t found = bytes_from(seen.first_bad, piece.range_end);
        finding = {seen.first_bad, seen.bad_bytes, found, 0};
        *is_any_bad = 1;
    }
}

}  // namespace

extern "C" __global__ void gma_fill_pattern(PatternArguments arguments) {
    if (piece_index() >= arguments.piece_count) { return; }
    fill(arguments.pieces[piece_index()], arguments.pattern);
}

extern "C" __global__ void gma_check_pattern(PatternArguments arguments) {
    const unsigned index = piece_index();
    if (index >= arguments.piece_count) { return; }
    look_at(arguments.pieces[index], arguments.pattern, arguments.findings[index],
            arguments.is_any_bad);
}

extern "C" __global__ void gma_look_pattern(LookArguments arguments) {
    unsigned index = piece_index();
    if (index >= arguments.piece_count) { return; }
    PatternFinding& finding = arguments.findings[index];
    unsigned range = 0;
    for (; index >= arguments.piece_counts[range]; ++range) {
        index -= arguments.piece_counts[range];
    }
    const auto [range_begin, range_end] = arguments.ranges[range];
    const std::uint64_t from = (range_begin / kWholePieceBytes + index) * kWholePieceBytes;
    look_at({max(from, range_begin), min(from + kWholePieceBytes, range_end), range_end},
            arguments.pattern, finding, arguments.is_any_bad);
}

extern "C" __global__ void gma_sweep_pattern(SweepArguments arguments) {
    const unsigned index = piece_index();
    if (index >= arguments.piece_count) { return; }
    const std::uint64_t from = (arguments.begin / kWholePieceBytes + index) * kWholePieceBytes;
    const std::uint64_t begin = max(from, arguments.begin);
    const std::uint64_t end = min(from + kWholePieceBytes, arguments.end);
    // What lies behind the piece may be filled already: it is not looked at.
    const std::uint64_t before_end = min(end, arguments.block_begin);
    if (begin < before_end) {
        look_at({begin, before_end, before_end}, arguments.pattern, arguments.findings[2 * index],
                arguments.is_any_bad);
    }
    const std::uint64_t behind_begin = max(begin, arguments.block_end);
    if (behind_begin < end) {
        look_at({behind_begin, end, end}, arguments.pattern, arguments.findings[2 * index + 1],
                arguments.is_any_bad);
    }
    __syncwarp();  // all have looked
    fill({begin, end, end}, arguments.pattern);
}
