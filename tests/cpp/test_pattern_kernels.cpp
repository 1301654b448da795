// The kernels of pattern.cu, compiled for the CPU, against the same written plainly: every start
// and end within vectors and words, long pieces, several warps and blocks.
#include <doctest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "driver/pattern_bytes.h"
#include "kernels_on_cpu.h"
//
#include "kernels/pattern.cu"

namespace gma {
namespace {

constexpr std::uint32_t kPattern = 0x8421'c3f5;

struct Memory {
    explicit Memory(Bytes size) : words(size / 8) {}
    unsigned char* bytes() { return reinterpret_cast<unsigned char*>(words.data()); }
    Address base() { return reinterpret_cast<Address>(words.data()) / 16 * 16 + 16; }
    std::vector<std::uint64_t> words;
};

unsigned block_count(std::size_t piece_count) {
    return static_cast<unsigned>((piece_count + kPatternBlockPieces - 1) / kPatternBlockPieces);
}

void fill(const std::vector<PatternPiece>& pieces) {
    const PatternArguments arguments{pieces.data(), nullptr, nullptr,
                                     static_cast<std::uint32_t>(pieces.size()), kPattern};
    run_on_cpu(gma_fill_pattern, block_count(pieces.size()), kPatternBlockThreads, arguments);
}

std::vector<PatternFinding> check(const std::vector<PatternPiece>& pieces) {
    std::vector<PatternFinding> findings(pieces.size());
    std::uint32_t is_any_bad = 0;
    const PatternArguments arguments{pieces.data(), findings.data(), &is_any_bad,
                                     static_cast<std::uint32_t>(pieces.size()), kPattern};
    run_on_cpu(gma_check_pattern, block_count(pieces.size()), kPatternBlockThreads, arguments);
    const bool is_found = std::any_of(findings.begin(), findings.end(),
                                      [](const PatternFinding& it) { return it.bad_bytes > 0; });
    CHECK(is_any_bad == (is_found ? 1 : 0));
    return findings;
}

unsigned char* at(Address address) { return reinterpret_cast<unsigned char*>(address); }

}  // namespace

TEST_CASE("pattern kernels: a fill writes its bytes and no others, wherever they begin and end") {
    Memory memory(64_KiB);
    std::vector<PatternPiece> pieces;
    Address next = memory.base();
    for (Bytes begin = 0; begin < 20; begin += 3) {
        for (const Bytes length : {0, 1, 2, 5, 15, 16, 17, 33, 700}) {
            pieces.push_back({next + begin, next + begin + length, next + begin + length});
            next += 32 * ((begin + length) / 32 + 2);
        }
    }
    std::vector<unsigned char> wanted(next - memory.base(), 0x11);
    std::fill_n(at(memory.base()), wanted.size(), 0x11);
    for (const PatternPiece& piece : pieces) {
        const ByteRange range{piece.begin, piece.end};
        write_pattern(wanted.data() + (piece.begin - memory.base()), range, kPattern);
    }
    fill(pieces);
    CHECK(std::equal(wanted.begin(), wanted.end(), at(memory.base())));
}

TEST_CASE("pattern kernels: a check finds every bad byte and none outside, as the CPU does") {
    Memory memory(64_KiB);
    const Address base = memory.base();
    const Address end = base + 48_KiB;
    fill({{base, end, end}});
    for (const Bytes bad : {0, 17, 18, 2'047, 2'048, 4'099, 9'000, 20'000, 20'003, 49'151}) {
        *at(base + bad) ^= 0x40;
    }
    std::vector<PatternPiece> pieces;
    for (const Bytes begin : {0, 1, 15, 16, 17, 18, 19, 2'048, 9'001, 20'001}) {
        for (const Bytes length : {0, 1, 2, 3, 16, 100, 2'048, 8'191, 29'000}) {
            pieces.push_back({base + begin, base + begin + length, base + begin + length});
        }
    }
    pieces.push_back({end - 1, end, end});
    pieces.push_back({base + 4'000, base + 4'100, base + 4'101});  // shows beyond its own end
    const std::vector<PatternFinding> findings = check(pieces);
    std::size_t differing = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const ByteRange range{pieces[i].begin, pieces[i].end};
        const auto wanted = find_other(at(range.begin), i, range, kPattern);
        const PatternFinding& found = findings[i];
        differing += found.bad_bytes != (wanted ? wanted->bad_bytes : 0);
        differing += wanted && found.first_bad != wanted->first_bad;
        if (wanted && i + 1 < pieces.size()) {
            differing += std::memcmp(&found.found, wanted->found.data(), 4) != 0;
        }
    }
    CHECK(differing == 0);
    CHECK(findings.back().first_bad == base + 4'099);
    CHECK(findings.back().found == (*at(base + 4'099) | *at(base + 4'100) << 8));
}

// Both ends of the range and of the block within vectors, in the same piece and in others.
TEST_CASE("pattern kernels: a sweep looks around the block, then fills all of the range") {
    constexpr Bytes kPiece = kWholePieceBytes;
    Memory memory(5 * kPiece);
    const Address base = (memory.base() + kPiece - 1) / kPiece * kPiece;
    struct Case {
        Bytes begin, block_begin, block_end, end;
    };
    for (const Case& sizes :
         {Case{16, 16, 300, 300}, Case{3, 20, 25, 70}, Case{5, kPiece - 3, kPiece + 9, kPiece + 40},
          Case{0, 3 * kPiece, 3 * kPiece, 3 * kPiece},
          Case{kPiece, kPiece + 1, 2 * kPiece - 1, 3 * kPiece + 17}}) {
        CAPTURE(sizes.begin);
        const ByteRange all{base, base + 3 * kPiece + 64};
        const ByteRange range{base + sizes.begin, base + sizes.end};
        const ByteRange block{base + sizes.block_begin, base + sizes.block_end};
        std::fill_n(at(all.begin), all.end - all.begin, 0x11);
        write_pattern(at(range.begin), range, kPattern);
        std::fill_n(at(block.begin), block.end - block.begin, 0x22);
        std::array<Bytes, 2> bad_bytes{};
        for (Address bad = range.begin; bad < range.end; bad += 4'099) {
            *at(bad) ^= 0x40;
            if (bad < block.begin) { ++bad_bytes[0]; }
            if (bad >= block.end) { ++bad_bytes[1]; }
        }
        std::vector<unsigned char> wanted(at(all.begin), at(all.end));
        write_pattern(wanted.data() + sizes.begin, range, kPattern);
        const std::uint32_t count = whole_piece_count(range.begin, range.end);
        std::vector<PatternFinding> findings(2 * count);
        std::uint32_t is_any_bad = 0;
        const SweepArguments arguments{range.begin,     range.end,   block.begin, block.end,
                                       findings.data(), &is_any_bad, count,       kPattern};
        run_on_cpu(gma_sweep_pattern, block_count(count), kPatternBlockThreads, arguments);
        CHECK(std::equal(wanted.begin(), wanted.end(), at(all.begin)));
        std::array<Bytes, 2> found_bytes{};
        std::array<Address, 2> first_bad{};
        for (std::size_t i = 0; i < findings.size(); ++i) {
            if (findings[i].bad_bytes > 0 && first_bad[i % 2] == 0) {
                first_bad[i % 2] = findings[i].first_bad;
                const Address bad = findings[i].first_bad;
                CHECK((findings[i].found & 0xff) == (pattern_byte(kPattern, bad) ^ 0x40U));
            }
            found_bytes[i % 2] += findings[i].bad_bytes;
        }
        CHECK(found_bytes == bad_bytes);
        CHECK(is_any_bad == (bad_bytes[0] + bad_bytes[1] > 0 ? 1 : 0));
        CHECK(first_bad[0] == (bad_bytes[0] > 0 ? range.begin : 0));
    }
}

// More ranges than a warp, within pieces and over several, and one that is empty.
TEST_CASE("pattern kernels: a look finds what differs in each of a few ranges") {
    constexpr Bytes kPiece = kWholePieceBytes;
    Memory memory(6 * kPiece);
    const Address base = memory.base();
    LookArguments arguments{};
    std::uint32_t count = 0;
    auto add = [&, index = 0](Bytes begin, Bytes end) mutable {
        arguments.ranges[index] = {base + begin, base + end};
        arguments.piece_counts[index] = whole_piece_count(base + begin, base + end);
        count += arguments.piece_counts[index++];
        write_pattern(at(base + begin), {base + begin, base + end}, kPattern);
    };
    add(3, 100);
    add(kPiece, 3 * kPiece + 5);
    add(4 * kPiece, 4 * kPiece + 1);
    add(4 * kPiece + 64, 5 * kPiece);
    for (const Bytes bad : {Bytes{99}, Bytes{100}, 3 * kPiece + 4, 4 * kPiece}) {
        *at(base + bad) ^= 0x40;
    }
    std::vector<PatternFinding> findings(count);
    std::uint32_t is_any_bad = 0;
    arguments.findings = findings.data();
    arguments.is_any_bad = &is_any_bad;
    arguments.range_count = 4;
    arguments.piece_count = count;
    arguments.pattern = kPattern;
    run_on_cpu(gma_look_pattern, block_count(count), kPatternBlockThreads, arguments);
    CHECK(is_any_bad == 1);
    std::vector<Bytes> found;
    for (const PatternFinding& finding : findings) {
        if (finding.bad_bytes > 0) { found.push_back(finding.first_bad - base); }
    }
    CHECK(found == std::vector<Bytes>{99, 3 * kPiece + 4, 4 * kPiece});
}

}  // namespace gma
