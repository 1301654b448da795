#include "core/segment_memory.h"

#include <utility>

#include "core/segment.h"

namespace gma {
namespace {

class DriverSegments final : public SegmentMemory {
public:
    DriverSegments(Driver& driver, int device) : driver_(driver), device_(device) {}
    Result<Address> obtain(Bytes bytes, const Request&) override {
        return driver_.malloc(device_, bytes);
    }
    Status give_back(const Segment& segment) override {
        return driver_.free(device_, segment.address);
    }

private:
    Driver& driver_;
    const int device_;
};

class ProvidedSegments final : public SegmentMemory {
public:
    explicit ProvidedSegments(std::shared_ptr<SegmentProvider> provider)
        : provider_(std::move(provider)) {}
    bool is_foreign() const override { return true; }
    Result<Address> obtain(Bytes bytes, const Request&) override {
        Result<Address> address = provider_->obtain(bytes);
        if (address && *address == 0) {
            return Status(Code::OutOfMemory, "the pool's allocator has no more memory");
        }
        return address;
    }
    Status give_back(const Segment& segment) override {
        provider_->give_back(segment.address);
        return {};
    }

private:
    const std::shared_ptr<SegmentProvider> provider_;
};

}  // namespace

BaseAllocation SegmentMemory::extent(const Segment& segment) const {
    return {segment.address, segment.bytes};
}

std::unique_ptr<SegmentMemory> driver_segments(Driver& driver, int device) {
    return std::make_unique<DriverSegments>(driver, device);
}

std::unique_ptr<SegmentMemory> provided_segments(std::shared_ptr<SegmentProvider> provider) {
    return std::make_unique<ProvidedSegments>(std::move(provider));
}

}  // namespace gma
