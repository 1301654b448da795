#include <string>

#include "replay/targets.h"

namespace gma {
namespace {

// Handles that CUDA gives a meaning of its own (0, 1, 2) must not meet a trace's stream numbers.
Stream stream_of(std::uint64_t recorded) {
    constexpr std::uint64_t kRecorded = 1ULL << 62;
    return recorded == 0 ? nullptr : reinterpret_cast<Stream>(recorded ^ kRecorded);
}

Stream holder_stream(std::uint64_t number) {
    constexpr std::uint64_t kHolder = 1ULL << 61;
    return reinterpret_cast<Stream>(kHolder + number);
}

}  // namespace

Status CoreTarget::open(const Options& options, Bytes limit_bytes) {
    auto allocator = Allocator::create(driver_, options);
    if (!allocator) { return allocator.status(); }
    allocator_ = std::move(*allocator);
    return limit_bytes == 0 ? Status() : allocator_->set_limit(kDevice, limit_bytes);
}

Result<Address> CoreTarget::allocate(const ReplayStep& step) {
    // A trace says which pool a block came from, not when the pool was begun and ended: each is
    // begun for the block at hand, since recorded streams are not asked while one is.
    const PoolId pool{0, step.pool};
    if (step.pool != 0) {
        Status status = allocator_->begin_pool(kDevice, pool, [](Stream) { return true; });
        if (!status.ok()) { return status; }
    }
    Result<Address> address = allocator_->allocate(kDevice, step.bytes, stream_of(step.stream));
    if (step.pool != 0) {
        if (Status status = allocator_->end_pool(kDevice, pool); !status.ok()) { return status; }
    }
    if (address) { addresses_[step.block] = *address; }
    return address;
}

Status CoreTarget::free_later(std::uint32_t block) {
    Stream holder = nullptr;
    if (idle_holders_.empty()) {
        holder = holder_stream(++holder_count_);
    } else {
        holder = idle_holders_.front();
        idle_holders_.pop_front();
    }
    driver_.hold(holder, kDevice);
    holders_[block] = holder;
    if (Status status = allocator_->record_stream(addresses_[block], holder); !status.ok()) {
        return status;
    }
    return allocator_->free(addresses_[block]);
}

Status CoreTarget::complete(std::uint32_t block) {
    const auto found = holders_.find(block);
    if (found != holders_.end()) {
        driver_.let_go(found->second, kDevice);
        idle_holders_.push_back(found->second);
        holders_.erase(found);
    }
    return {};
}

std::uint64_t CoreTarget::retries() {
    return static_cast<std::uint64_t>(allocator_->statistics(kDevice).num_alloc_retries);
}

Bytes CoreTarget::reserved(std::int64_t Gauge::* field) {
    const DeviceStatistics statistics = allocator_->statistics(kDevice);
    return static_cast<Bytes>(statistics.reserved_bytes[static_cast<std::size_t>(StatPool::All)].*
                              field);
}

}  // namespace gma
