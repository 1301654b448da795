// What a replay can run through: the real core over the host driver, or the model of PyTorch's
// native policy. See replay_loop.h for what a target must offer.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/allocator.h"
#include "driver/host_driver.h"
#include "replay/native_model.h"
#include "replay/replay.h"

namespace gma {

class CoreTarget {
public:
    CoreTarget(const HostDriverConfig& config, std::size_t block_count)
        : driver_(config), addresses_(block_count, 0) {}

    Status open(const Options& options, Bytes limit_bytes);

    Result<Address> allocate(const ReplayStep& step);
    Status free(std::uint32_t block) { return allocator_->free(addresses_[block]); }
    Status free_later(std::uint32_t block);
    Status complete(std::uint32_t block);

    void set_time_ns(std::uint64_t now_ns) { driver_.set_time_ns(now_ns); }
    Bytes reserved_bytes() { return reserved(&Gauge::current); }
    Bytes peak_reserved_bytes() { return reserved(&Gauge::peak); }
    void reset_peak() { allocator_->reset_peak_statistics(kDevice); }
    CallTotals totals() { return driver_.totals(); }
    std::uint64_t retries();

private:
    static constexpr int kDevice = 0;

    Bytes reserved(std::int64_t Gauge::* field);

    HostDriver driver_;
    std::unique_ptr<Allocator> allocator_;
    std::vector<Address> addresses_;
    // A freed block that another stream still uses: the stand-in for that stream, held until the
    // trace says that the block may be used again.
    std::unordered_map<std::uint32_t, Stream> holders_;
    std::deque<Stream> idle_holders_;
    std::uint64_t holder_count_ = 0;
};

class NativeTarget {
public:
    NativeTarget(const NativeConfig& config, const ReplayTrace& trace);

    Result<Address> allocate(const ReplayStep& step);
    Status free(std::uint32_t block);
    Status free_later(std::uint32_t block);
    Status complete(std::uint32_t block);

    void set_time_ns(std::uint64_t) {}
    Bytes reserved_bytes() const { return model_.held_bytes(); }
    Bytes peak_reserved_bytes() const { return model_.peak_held_bytes(); }
    void reset_peak() { model_.reset_peak(); }
    CallTotals totals() const { return model_.totals(); }
    std::uint64_t retries() const { return model_.retries(); }

private:
    NativeModel model_;
    std::vector<bool> adopted_;  // blocks of the start state that already lie in their place
};

}  // namespace gma
