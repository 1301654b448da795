// Replays a recorded run through an allocator: one event at a time, no look-ahead.
//
// The readers (gpumem_alloc/trace/) have turned addresses into dense block numbers and dropped the
// events that ask nothing of an allocator, so the loop here needs no map. Time is the recorded
// host's clock; a fence recorded at t passes at t + lag.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "driver/host_calls.h"
#include "replay/native_config.h"
#include "replay/segment_source.h"

namespace gma {

enum class StepKind : std::uint8_t {
    Allocate,
    Free,       // requested and completed at once: no other stream uses the block
    FreeLater,  // requested; may be used again from Complete on
    Complete,
};

// The layout is shared with gpumem_alloc/trace/steps.py.
struct ReplayStep {
    std::uint64_t time_ns = 0;
    Bytes bytes = 0;           // Allocate: as requested
    std::uint64_t stream = 0;  // Allocate: the trace's handle
    std::int64_t event = -1;   // index in the file's list; -1 restores the start state
    std::uint32_t block = 0;
    std::uint16_t pool = 0;  // dense; 0 is the default pool
    StepKind kind = StepKind::Allocate;
    std::uint8_t padding = 0;
};
static_assert(sizeof(ReplayStep) == 40 && std::is_trivially_copyable_v<ReplayStep>);

struct StartSegment {
    RecordedSegment segment;
    bool is_small = false;
};

struct StartBlock {
    std::uint32_t block = 0;
    Address address = 0;
    Bytes bytes = 0;  // as requested
};

// What a trace says to the engine. The steps are the caller's and must outlive the call.
struct ReplayTrace {
    std::span<const ReplayStep> steps;
    std::size_t block_count = 0;
    std::uint64_t event_count = 0;
    // Known only to traces of the native policy, and used only by its model.
    std::vector<RecordedSegment> segments;     // as they were allocated, in order
    std::vector<StartSegment> start_segments;  // those that existed before the first event
    std::vector<StartBlock> start_blocks;      // where the blocks of the start state lay
};

struct ReplaySettings {
    std::string allocator;  // paged, split, direct, native, native-expandable
    KeyValues options;
    Bytes limit_bytes = 0;  // 0: none
    std::uint32_t repeat = 1;
    std::uint64_t lag_ns = 20'000'000;
};

struct ReplayRound {
    Bytes peak_reserved_bytes = 0;
    Bytes end_reserved_bytes = 0;    // after the last event, before the rest is freed
    std::uint64_t address_hash = 0;  // of the addresses handed out, in order
};

struct ReplayOom {
    std::int64_t event = -1;
    Bytes requested_bytes = 0;
    Bytes reserved_bytes = 0;
    Bytes live_bytes = 0;
};

struct ReplayResult {
    Bytes peak_reserved_bytes = 0;
    Bytes end_reserved_bytes = 0;
    Bytes peak_live_bytes = 0;  // requests rounded up to 512
    Bytes end_live_bytes = 0;
    CallTotals calls;
    CallTotals calls_second_half;  // of every round: from event floor(n / 2) of the file on
    std::uint64_t alloc_retries = 0;
    std::optional<ReplayOom> oom;  // the replay stopped here
    std::vector<ReplayRound> rounds;
    double replay_seconds = 0.0;  // the loop alone
};

// The names `settings.allocator` may have.
const std::vector<std::string>& replay_allocators();
// Refuses an unknown allocator or option, naming the nearest valid one, without replaying.
Status check_replay_settings(const ReplaySettings& settings);
// A bad trace (a step out of range) and a driver's refusal other than out of memory are failures.
Result<ReplayResult> replay(const ReplayTrace& trace, const ReplaySettings& settings);

}  // namespace gma
