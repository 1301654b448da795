// The loop of a replay over anything that allocates. A target has:
//   Result<Address> allocate(step)    Code::OutOfMemory ends the replay
//   Status free(block), free_later(block), complete(block)
//   void set_time_ns(now)             reserved_bytes(), peak_reserved_bytes(), reset_peak()
//   totals(), retries()
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "replay/replay.h"

namespace gma {

template <class Target>
class ReplayLoop {
public:
    ReplayLoop(Target& target, const ReplayTrace& trace, const ReplaySettings& settings)
        : target_(target),
          trace_(trace),
          settings_(settings),
          state_(trace.block_count, BlockState::None),
          bytes_(trace.block_count, 0) {}

    Status run(ReplayResult& result) {
        const std::int64_t half = static_cast<std::int64_t>(trace_.event_count / 2);
        for (std::uint32_t round = 0; round < settings_.repeat && !result.oom; ++round) {
            if (round != 0) {
                if (Status status = end_round(); !status.ok()) { return status; }
            }
            if (Status status = run_round(half, result); !status.ok()) { return status; }
        }
        result.end_reserved_bytes = target_.reserved_bytes();
        result.end_live_bytes = live_bytes_;
        result.calls = target_.totals();
        result.alloc_retries = target_.retries();
        return {};
    }

private:
    enum class BlockState : std::uint8_t { None, Live, Pending };

    Status run_round(std::int64_t half, ReplayResult& result) {
        const std::span<const ReplayStep> steps = trace_.steps;
        const auto middle =
            std::partition_point(steps.begin(), steps.end(),
                                 [half](const ReplayStep& step) { return step.event < half; });
        const std::size_t first_half = static_cast<std::size_t>(middle - steps.begin());
        hash_ = kHashSeed;
        peak_live_bytes_ = live_bytes_;
        target_.reset_peak();
        Status status = run_steps(steps.first(first_half), result);
        const CallTotals at_middle = target_.totals();
        if (status.ok() && !result.oom) { status = run_steps(steps.subspan(first_half), result); }
        if (!status.ok()) { return status; }
        add_difference(target_.totals(), at_middle, result.calls_second_half);
        const Bytes peak = target_.peak_reserved_bytes();
        result.rounds.push_back({peak, target_.reserved_bytes(), hash_});
        result.peak_reserved_bytes = std::max(result.peak_reserved_bytes, peak);
        result.peak_live_bytes = std::max(result.peak_live_bytes, peak_live_bytes_);
        return {};
    }

    Status run_steps(std::span<const ReplayStep> steps, ReplayResult& result) {
        const auto start = std::chrono::steady_clock::now();
        Status status;
        for (const ReplayStep& step : steps) {
            target_.set_time_ns(time_base_ns_ + step.time_ns);
            status = step.kind == StepKind::Allocate ? allocate(step, result) : give_back(step);
            if (!status.ok() || result.oom) { break; }
        }
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        result.replay_seconds += seconds.count();
        return status;
    }

    Status allocate(const ReplayStep& step, ReplayResult& result) {
        Result<Address> address = target_.allocate(step);
        if (!address) {
            if (address.status().code() != Code::OutOfMemory) { return address.status(); }
            result.oom = {step.event, step.bytes, target_.reserved_bytes(), live_bytes_};
            return {};
        }
        hash_ = (hash_ ^ *address) * kHashFactor;
        hash_ ^= hash_ >> 29;
        state_[step.block] = BlockState::Live;
        bytes_[step.block] = round_up(step.bytes, kUnitBytes);
        live_bytes_ += bytes_[step.block];
        peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
        return {};
    }

    Status give_back(const ReplayStep& step) {
        if (step.kind == StepKind::Complete) {
            state_[step.block] = BlockState::None;
            return target_.complete(step.block);
        }
        live_bytes_ -= bytes_[step.block];
        if (step.kind == StepKind::FreeLater) {
            state_[step.block] = BlockState::Pending;
            return target_.free_later(step.block);
        }
        state_[step.block] = BlockState::None;
        return target_.free(step.block);
    }

    // Frees what is live and lets what is pending end; the clock moves on by one recorded run.
    Status end_round() {
        for (std::uint32_t block = 0; block < state_.size(); ++block) {
            Status status;
            if (state_[block] == BlockState::Live) {
                status = target_.free(block);
            } else if (state_[block] == BlockState::Pending) {
                status = target_.complete(block);
            }
            if (!status.ok()) { return status; }
            state_[block] = BlockState::None;
        }
        live_bytes_ = 0;
        if (!trace_.steps.empty()) {
            time_base_ns_ += trace_.steps.back().time_ns + settings_.lag_ns;
        }
        target_.set_time_ns(time_base_ns_);
        return {};
    }

    static void add_difference(const CallTotals& now, const CallTotals& before, CallTotals& sum) {
        for (std::size_t call = 0; call < now.counts.size(); ++call) {
            sum.counts[call] += now.counts[call] - before.counts[call];
        }
        sum.cost_ns += now.cost_ns - before.cost_ns;
    }

    static constexpr std::uint64_t kHashSeed = 0x9e3779b97f4a7c15ULL;
    static constexpr std::uint64_t kHashFactor = 0xbf58476d1ce4e5b9ULL;

    Target& target_;
    const ReplayTrace& trace_;
    const ReplaySettings& settings_;
    std::vector<BlockState> state_;
    std::vector<Bytes> bytes_;
    std::uint64_t time_base_ns_ = 0;
    std::uint64_t hash_ = kHashSeed;
    Bytes live_bytes_ = 0;
    Bytes peak_live_bytes_ = 0;
};

}  // namespace gma
