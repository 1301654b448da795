// What the host and the kernels of pattern.cu tell each other. nvcc compiles this too, and the
// stand-in machine of tests/rig runs the same arguments on the CPU.
//
// The pattern is a 32-bit word: the byte at address a is byte a % 4 of it, the lowest one first.
#pragma once

#include <cstdint>

namespace gma {

// A part of a range, for one warp. Short, so that a long range keeps many warps busy.
struct PatternPiece {
    std::uint64_t begin;
    std::uint64_t end;
    std::uint64_t range_end;  // `found` may be read up to here
};

// All zero where a piece holds the pattern: then nothing is written.
struct PatternFinding {
    std::uint64_t first_bad;
    std::uint64_t bad_bytes;
    std::uint32_t found;  // the bytes from first_bad on, the lowest one first
    std::uint32_t unused;
};

// The one parameter of each kernel. The arrays are in pinned memory of the host.
struct PatternArguments {
    const PatternPiece* pieces;
    PatternFinding* findings;  // of each piece; the fill has none
    std::uint32_t* is_any_bad;
    std::uint32_t piece_count;
    std::uint32_t pattern;
};

// Of the two that are launched for each tensor or for some, all is in the one parameter: nothing is
// listed elsewhere. Their pieces lie between multiples of kWholePieceBytes.
inline constexpr std::uint64_t kWholePieceBytes = 8192;
inline constexpr std::uint32_t kLookedAtRanges = 16;

constexpr std::uint32_t whole_piece_count(std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t first = begin / kWholePieceBytes;
    return static_cast<std::uint32_t>((end + kWholePieceBytes - 1) / kWholePieceBytes - first);
}

// Looks at a few ranges.
struct LookArguments {
    struct {
        std::uint64_t begin;
        std::uint64_t end;
    } ranges[kLookedAtRanges];
    std::uint32_t piece_counts[kLookedAtRanges];
    PatternFinding* findings;  // of each piece, range by range
    std::uint32_t* is_any_bad;
    std::uint32_t range_count;
    std::uint32_t piece_count;  // of all
    std::uint32_t pattern;
};

// Looks at a range but for the block in it, then fills all of it.
struct SweepArguments {
    std::uint64_t begin;
    std::uint64_t end;
    std::uint64_t block_begin;  // within the range
    std::uint64_t block_end;
    PatternFinding* findings;  // two for each piece: before the block, and behind it
    std::uint32_t* is_any_bad;
    std::uint32_t piece_count;
    std::uint32_t pattern;
};

inline constexpr char kFillKernel[] = "gma_fill_pattern";
inline constexpr char kCheckKernel[] = "gma_check_pattern";
inline constexpr char kLookKernel[] = "gma_look_pattern";
inline constexpr char kSweepKernel[] = "gma_sweep_pattern";
inline constexpr std::uint32_t kPatternBlockThreads = 256;
inline constexpr std::uint32_t kPatternBlockPieces = kPatternBlockThreads / 32;

}  // namespace gma
