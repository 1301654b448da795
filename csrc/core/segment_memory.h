// Where a strategy's segments come from and go back to.
#pragma once

#include <memory>

#include "core/allocator.h"
#include "core/strategy.h"

namespace gma {

struct Segment;

class SegmentMemory {
public:
    virtual ~SegmentMemory() = default;
    // Physical bytes that a segment of `bytes` takes.
    virtual Bytes held_bytes(Bytes bytes) const { return bytes; }
    // What the segment has of addresses, which may be more than its blocks.
    virtual BaseAllocation extent(const Segment& segment) const;
    // Not our own: what it gives is looked at before it is used.
    virtual bool is_foreign() const { return false; }
    virtual Result<Address> obtain(Bytes bytes, const Request& request) = 0;
    // No running work uses the segment any more.
    virtual Status give_back(const Segment& segment) = 0;
};

// One Driver::malloc for each.
std::unique_ptr<SegmentMemory> driver_segments(Driver& driver, int device);
// Another allocator's; it lives until the last one is given back.
std::unique_ptr<SegmentMemory> provided_segments(std::shared_ptr<SegmentProvider> provider);

}  // namespace gma
