// What tests of the no-sharing mode ask of a PatternWorld.
#pragma once

#include "core/isolation.h"
#include "pattern_world.h"

namespace gma {

// Everything queued has run, and all checks that are due are made and answered.
inline void settle(PatternWorld& world) {
    for (int device = 0; device < world.driver.device_count(); ++device) {
        const Result<std::int64_t> checked = world.allocator->check_isolation(device);
        REQUIRE_MESSAGE(checked, checked.status().message());
    }
    world.driver.drain_all();
}

// Nobody did anything wrong, so nothing may have been found, nor touched where nothing is mapped.
inline void check_no_alarm(PatternWorld& world) {
    for (int device = 0; device < world.driver.device_count(); ++device) {
        const IsolationReport report = world.allocator->isolation_report(device);
        for (const Violation& violation : report.violations) {
            FAIL_CHECK(violation_text(violation));
        }
        CHECK(report.violation_count == 0);
    }
    for (const HostIllegalAccess& access : world.driver.illegal_accesses()) {
        CAPTURE(access.device);
        CAPTURE(reinterpret_cast<std::uintptr_t>(access.stream));
        CAPTURE(access.is_write);
        FAIL_CHECK("an illegal access at " << access.address);
    }
}

// packed, settled: what is free outside private pools holds the pattern, byte by byte. Returns how
// many bytes were looked at.
inline Bytes check_free_memory(PatternWorld& world, int device) {
    Bytes looked_at = 0;
    Bytes wrong = 0;
    for (const SegmentInfo& segment : world.allocator->snapshot(device)) {
        if (segment.pool != PoolId{}) { continue; }
        for (const BlockInfo& block : segment.blocks) {
            if (block.state != BlockState::Free) { continue; }
            for (Address at = block.address; at < block.address + block.bytes; at += 4) {
                wrong += *reinterpret_cast<const std::uint32_t*>(at) == kPattern ? 0 : 4;
            }
            looked_at += block.bytes;
        }
    }
    CHECK(wrong == 0);
    return looked_at;
}

}  // namespace gma
