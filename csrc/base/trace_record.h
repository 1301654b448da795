// One recorded event and the header of a recording: what the event ring holds, what our own trace
// file holds, and what gpumem_alloc/trace/events.py reads. It lies below the core since the core's
// ring writes it.
//
// The file is a TraceHeader, then `count` records of `record_bytes` each, oldest first, all little
// endian. A reader refuses another magic, a newer version and a size that does not add up; fields
// are only ever added by raising kTraceVersion.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "base/units.h"

namespace gma {

// Numbers are part of the file format: append, never renumber.
//   GMA_ACTION(name in C++, number, name in PyTorch's snapshots)
#define GMA_ACTIONS(GMA_ACTION)                    \
    GMA_ACTION(Alloc, 0, "alloc")                  \
    GMA_ACTION(FreeRequested, 1, "free_requested") \
    GMA_ACTION(FreeCompleted, 2, "free_completed") \
    GMA_ACTION(SegmentAlloc, 3, "segment_alloc")   \
    GMA_ACTION(SegmentFree, 4, "segment_free")     \
    GMA_ACTION(SegmentMap, 5, "segment_map")       \
    GMA_ACTION(SegmentUnmap, 6, "segment_unmap")   \
    GMA_ACTION(RecordStream, 7, "record_stream")   \
    GMA_ACTION(Oom, 8, "oom")                      \
    GMA_ACTION(Snapshot, 9, "snapshot")            \
    GMA_ACTION(EmptyCache, 10, "empty_cache")      \
    GMA_ACTION(Other, 11, "other")                 \
    GMA_ACTION(Free, 12, "free") /* requested and completed at once */

enum class Action : std::uint8_t {
#define GMA_ACTION(name, number, text) name = number,
    GMA_ACTIONS(GMA_ACTION)
#undef GMA_ACTION
};

// Bits of TraceRecord::flags.
inline constexpr std::uint8_t kTraceAtStart = 1;  // state before the first event, not an event

struct TraceRecord {
    std::uint64_t time_ns = 0;     // the host's clock; counts from any origin
    Address address = 0;           // 0 for actions that have none
    Bytes bytes = 0;               // as requested for blocks, as obtained for segments
    std::uint64_t stream = 0;      // the handle's value; for RecordStream the other stream
    std::uint32_t pool_first = 0;  // PyTorch's MempoolId_t; both counters stay small
    std::uint32_t pool_second = 0;
    std::uint32_t thread = 0;
    std::int16_t device = 0;
    Action action = Action::Alloc;
    std::uint8_t flags = 0;
};
static_assert(sizeof(TraceRecord) == 48 && std::is_trivially_copyable_v<TraceRecord>);

inline constexpr std::array<char, 8> kTraceMagic = {'G', 'M', 'A', 'T', 'R', 'A', 'C', 'E'};
inline constexpr std::uint32_t kTraceVersion = 1;

// Bits of TraceHeader::flags.
inline constexpr std::uint32_t kTraceHasTimes = 1;  // time_ns is a clock, not an event's number
inline constexpr std::uint32_t kTraceWrapped = 2;   // the ring was full: older events are lost

struct TraceHeader {
    std::array<char, 8> magic = kTraceMagic;
    std::uint32_t version = kTraceVersion;
    std::uint32_t record_bytes = sizeof(TraceRecord);
    std::uint64_t count = 0;
    std::uint32_t flags = kTraceHasTimes;
    std::uint32_t reserved = 0;
};
static_assert(sizeof(TraceHeader) == 32 && std::is_trivially_copyable_v<TraceHeader>);

}  // namespace gma
