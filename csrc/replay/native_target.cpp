#include "replay/targets.h"

namespace gma {

NativeTarget::NativeTarget(const NativeConfig& config, const ReplayTrace& trace)
    : model_(config, SegmentSource(trace.segments), trace.block_count),
      adopted_(trace.block_count, false) {
    if (config.expandable) { return; }
    for (const StartSegment& start : trace.start_segments) {
        model_.adopt_segment(start.segment, start.is_small);
    }
    for (const StartBlock& start : trace.start_blocks) {
        adopted_[start.block] = model_.adopt_block(start.block, start.address, start.bytes);
    }
}

Result<Address> NativeTarget::allocate(const ReplayStep& step) {
    if (adopted_[step.block]) {
        adopted_[step.block] = false;
    } else if (!model_.allocate(step.block, step.bytes, step.stream, step.pool)) {
        return Status(Code::OutOfMemory, "the model of the native policy is out of memory");
    }
    return model_.address(step.block);
}

Status NativeTarget::free(std::uint32_t block) {
    model_.free(block);
    return {};
}

Status NativeTarget::free_later(std::uint32_t block) {
    model_.free_later(block);
    return {};
}

Status NativeTarget::complete(std::uint32_t block) {
    model_.complete(block);
    return {};
}

}  // namespace gma
