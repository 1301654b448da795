#include "replay/replay.h"

#include <algorithm>

#include "base/nearest.h"
#include "core/options.h"
#include "replay/replay_loop.h"
#include "replay/targets.h"

namespace gma {
namespace {

constexpr Bytes kCardBytes = 144_GiB;

bool is_native(const ReplaySettings& settings) { return settings.allocator.starts_with("native"); }

std::string text_of(const KeyValues& options) {
    std::string text;
    for (const auto& [key, value] : options) {
        text += (text.empty() ? "" : ",") + key + ":" + value;
    }
    return text;
}

Result<NativeConfig> native_config(const ReplaySettings& settings) {
    Result<NativeConfig> config = parse_native_config(settings.options);
    if (config) {
        config->expandable = settings.allocator == "native-expandable";
        config->limit_bytes = settings.limit_bytes == 0 ? kUnlimitedBytes : settings.limit_bytes;
    }
    return config;
}

Result<Options> core_options(const ReplaySettings& settings) {
    for (const auto& [key, value] : settings.options) {
        if (key == "strategy") {
            return Status(
                Code::InvalidValue,
                "the allocator's name is its strategy; leave out 'strategy=" + value + "'");
        }
    }
    KeyValues options = settings.options;
    options.emplace_back("strategy", settings.allocator);
    return parse_options(text_of(options));
}

Status bad_step(const ReplayStep& step, const char* why) {
    return {Code::InvalidValue,
            "bad replay step at event " + std::to_string(step.event) + ": " + why};
}

// What the loop relies on, checked once: numbers in range, order, and each block's life in order.
Status check_trace(const ReplayTrace& trace) {
    enum class Life : std::uint8_t { None, Live, Pending };
    std::vector<Life> lives(trace.block_count, Life::None);
    std::int64_t last_event = -1;
    std::uint64_t last_time_ns = 0;
    for (const ReplayStep& step : trace.steps) {
        const bool in_order = step.event >= last_event && step.time_ns >= last_time_ns;
        if (step.block >= trace.block_count || step.kind > StepKind::Complete || !in_order) {
            return bad_step(step, "numbers out of range, or time runs backwards");
        }
        Life& life = lives[step.block];
        const Life before = step.kind == StepKind::Allocate   ? Life::None
                            : step.kind == StepKind::Complete ? Life::Pending
                                                              : Life::Live;
        if (life != before) {
            return bad_step(step, "a block is allocated, freed and completed in this order");
        }
        life = step.kind == StepKind::Allocate    ? Life::Live
               : step.kind == StepKind::FreeLater ? Life::Pending
                                                  : Life::None;
        last_event = step.event;
        last_time_ns = step.time_ns;
    }
    for (const StartBlock& start : trace.start_blocks) {
        if (start.block >= trace.block_count) {
            return {Code::InvalidValue, "bad block number in the start state"};
        }
    }
    return {};
}

Bytes live_at_most(const ReplayTrace& trace) {
    std::vector<Bytes> bytes(trace.block_count, 0);
    Bytes live = 0;
    Bytes peak = 0;
    for (const ReplayStep& step : trace.steps) {
        if (step.kind == StepKind::Allocate) {
            bytes[step.block] = round_up(step.bytes, kUnitBytes);
            live += bytes[step.block];
            peak = std::max(peak, live);
        } else if (step.kind != StepKind::Complete) {
            live -= std::exchange(bytes[step.block], 0);
        }
    }
    return peak;
}

Result<ReplayResult> replay_native(const ReplayTrace& trace, const ReplaySettings& settings) {
    Result<NativeConfig> config = native_config(settings);
    if (!config) { return config.status(); }
    NativeTarget target(*config, trace);
    ReplayResult result;
    Status status = ReplayLoop(target, trace, settings).run(result);
    return status.ok() ? Result<ReplayResult>(std::move(result)) : status;
}

Result<ReplayResult> replay_core(const ReplayTrace& trace, const ReplaySettings& settings) {
    Result<Options> options = core_options(settings);
    if (!options) { return options.status(); }
    HostDriverConfig config;
    config.memory = HostMemory::AddressesOnly;
    config.timeline = HostTimeline::Clock;
    config.lag_ns = settings.lag_ns;
    config.capacity_bytes =
        std::max(kCardBytes, round_up(4 * live_at_most(trace), config.page_bytes));
    CoreTarget target(config, trace.block_count);
    if (Status status = target.open(*options, settings.limit_bytes); !status.ok()) {
        return status;
    }
    ReplayResult result;
    Status status = ReplayLoop(target, trace, settings).run(result);
    return status.ok() ? Result<ReplayResult>(std::move(result)) : status;
}

}  // namespace

const std::vector<std::string>& replay_allocators() {
    static const std::vector<std::string> names = {"native", "native-expandable", "split", "paged",
                                                   "direct", "isolated"};
    return names;
}

Status check_replay_settings(const ReplaySettings& settings) {
    const auto& names = replay_allocators();
    if (std::find(names.begin(), names.end(), settings.allocator) == names.end()) {
        return {Code::InvalidValue, "unknown allocator '" + settings.allocator +
                                        "'; did you mean '" + nearest(settings.allocator, names) +
                                        "'?"};
    }
    if (settings.repeat == 0) {
        return {Code::InvalidValue, "the number of rounds must be at least 1"};
    }
    return is_native(settings) ? native_config(settings).status() : core_options(settings).status();
}

Result<ReplayResult> replay(const ReplayTrace& trace, const ReplaySettings& settings) {
    if (Status status = check_replay_settings(settings); !status.ok()) { return status; }
    if (Status status = check_trace(trace); !status.ok()) { return status; }
    return is_native(settings) ? replay_native(trace, settings) : replay_core(trace, settings);
}

}  // namespace gma
