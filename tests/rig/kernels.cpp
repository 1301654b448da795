// The kernels of csrc/kernels on the CPU, in the plainest way, and copies. What they cannot reach
// they do not touch: the context is lost, as on a card.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/attack.h"
#include "kernels/pattern.h"
#include "rig.h"

namespace rig {
namespace {

unsigned char* bytes_at(CUdeviceptr address) { return reinterpret_cast<unsigned char*>(address); }

bool may_touch(int device, CUdeviceptr address, std::size_t bytes) {
    const bool may = reachable(device, address, bytes);
    if (!may) { lose_context(); }
    return may && !is_context_lost();
}

// Of the card's memory, which is all that these kernels are for.
bool may_touch_card(int device, CUdeviceptr address, std::size_t bytes) {
    if (owner_of(address).device < 0) { lose_context(); }
    return may_touch(device, address, bytes);
}

unsigned char pattern_byte(unsigned pattern, CUdeviceptr address) {
    return static_cast<unsigned char>(pattern >> (address % 4 * 8));
}

void fill(int device, const gma::PatternArguments& arguments) {
    for (unsigned i = 0; i < arguments.piece_count; ++i) {
        const gma::PatternPiece& piece = arguments.pieces[i];
        if (!may_touch_card(device, piece.begin, piece.end - piece.begin)) { return; }
        for (CUdeviceptr at = piece.begin; at < piece.end; ++at) {
            *bytes_at(at) = pattern_byte(arguments.pattern, at);
        }
    }
}

// Of a part of a range that ends at `range_end`; true: all of it holds the pattern.
bool look_at(const gma::PatternPiece& piece, unsigned pattern, gma::PatternFinding& finding) {
    gma::PatternFinding seen{};
    for (CUdeviceptr at = piece.begin; at < piece.end; ++at) {
        if (*bytes_at(at) == pattern_byte(pattern, at)) { continue; }
        if (seen.bad_bytes++ == 0) { seen.first_bad = at; }
    }
    if (seen.bad_bytes == 0) { return true; }
    const std::size_t shown = std::min<std::size_t>(4, piece.range_end - seen.first_bad);
    std::memcpy(&seen.found, bytes_at(seen.first_bad), shown);
    finding = seen;
    return false;
}

void check(int device, const gma::PatternArguments& arguments) {
    for (unsigned i = 0; i < arguments.piece_count; ++i) {
        const gma::PatternPiece& piece = arguments.pieces[i];
        if (!may_touch_card(device, piece.begin, piece.end - piece.begin)) { return; }
        if (!look_at(piece, arguments.pattern, arguments.findings[i])) {
            *arguments.is_any_bad = 1;
        }
    }
}

// As if each range were one piece.
void look(int device, const gma::LookArguments& arguments) {
    gma::PatternFinding* finding = arguments.findings;
    for (unsigned i = 0; i < arguments.range_count; ++i) {
        const auto [begin, end] = arguments.ranges[i];
        if (begin < end && !may_touch_card(device, begin, end - begin)) { return; }
        if (!look_at({begin, end, end}, arguments.pattern, *finding)) { *arguments.is_any_bad = 1; }
        finding += arguments.piece_counts[i];
    }
}

void sweep(int device, const gma::SweepArguments& arguments) {
    const CUdeviceptr begin = arguments.begin;
    const CUdeviceptr end = arguments.end;
    if (!may_touch_card(device, begin, end - begin)) { return; }
    const gma::PatternPiece before{begin, arguments.block_begin, arguments.block_begin};
    const gma::PatternPiece behind{arguments.block_end, end, end};
    if (!look_at(before, arguments.pattern, arguments.findings[0])) { *arguments.is_any_bad = 1; }
    if (!look_at(behind, arguments.pattern, arguments.findings[1])) { *arguments.is_any_bad = 1; }
    for (CUdeviceptr at = begin; at < end; ++at) {
        *bytes_at(at) = pattern_byte(arguments.pattern, at);
    }
}

enum class Touch { Poke, Peek, Scatter, Gather };

void attack(int device, Touch touch, const gma::AttackArguments& arguments) {
    const bool by_element = touch == Touch::Scatter || touch == Touch::Gather;
    const std::size_t bytes = by_element ? 4 : arguments.count;
    const auto index = static_cast<CUdeviceptr>(arguments.index);
    const CUdeviceptr at = arguments.address + index * (by_element ? 4 : 1);
    if (!may_touch_card(device, at, bytes)) { return; }
    if (touch == Touch::Poke) {
        std::memset(bytes_at(at), static_cast<int>(arguments.value & 0xff), bytes);
    } else if (touch == Touch::Scatter) {
        std::memcpy(bytes_at(at), &arguments.value, bytes);
    } else {
        std::memcpy(arguments.output, bytes_at(at), bytes);
    }
}

}  // namespace

std::function<void()> kernel_work(const char* name, int device, void** parameters) {
    const std::string kernel = name;
    if (kernel == gma::kFillKernel || kernel == gma::kCheckKernel) {
        const auto arguments = *static_cast<const gma::PatternArguments*>(parameters[0]);
        if (kernel == gma::kFillKernel) {
            return [=] { fill(device, arguments); };
        }
        return [=] { check(device, arguments); };
    }
    if (kernel == gma::kLookKernel) {
        const auto arguments = *static_cast<const gma::LookArguments*>(parameters[0]);
        return [=] { look(device, arguments); };
    }
    if (kernel == gma::kSweepKernel) {
        const auto arguments = *static_cast<const gma::SweepArguments*>(parameters[0]);
        return [=] { sweep(device, arguments); };
    }
    const std::pair<const char*, Touch> attacks[] = {{gma::kPokeKernel, Touch::Poke},
                                                     {gma::kPeekKernel, Touch::Peek},
                                                     {gma::kScatterKernel, Touch::Scatter},
                                                     {gma::kGatherKernel, Touch::Gather}};
    for (const auto& [attack_name, touch] : attacks) {
        if (kernel == attack_name) {
            const auto arguments = *static_cast<const gma::AttackArguments*>(parameters[0]);
            return [=] { attack(device, touch, arguments); };
        }
    }
    return [] {};
}

void copy(int device, void* to, const void* from, std::size_t bytes) {
    if (may_touch(device, reinterpret_cast<CUdeviceptr>(to), bytes) &&
        may_touch(device, reinterpret_cast<CUdeviceptr>(from), bytes)) {
        std::memcpy(to, from, bytes);
    }
}

void set_words(int device, CUdeviceptr to, unsigned value, std::size_t word_bytes,
               std::size_t count) {
    if (!may_touch(device, to, word_bytes * count)) { return; }
    if (word_bytes == 1) {
        std::memset(bytes_at(to), static_cast<int>(value), count);
    } else {
        std::fill_n(reinterpret_cast<unsigned*>(bytes_at(to)), count, value);
    }
}

}  // namespace rig
