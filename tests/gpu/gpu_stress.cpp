// The stress on a GPU: gpu_stress [operations] [limit in MiB] [seed] [options]. Prints one line of
// JSON; the exit code is 0 only if chunks moved (where pages can), no word was wrong, nothing was
// left behind, and with isolation no alarm was raised.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "card.h"
#include "driver/cuda_driver.h"
#include "stress.h"

namespace gma::stress {
namespace {

class OnGpu final : public Card {
public:
    Stream stream(int index) override { return card_.stream(index); }
    void fill(Stream stream, Address address, Bytes bytes, std::uint32_t seed) override {
        card_.fill(stream, address, bytes, seed);
    }
    void check(Stream stream, Address address, Bytes bytes, std::uint32_t seed) override {
        card_.check(stream, address, bytes, seed);
    }
    void wait_for(Stream waiter, Stream other) override { card_.wait_for(waiter, other); }
    void spin(Stream stream, int microseconds) override { card_.spin(stream, microseconds); }
    void progress() override {}
    std::uint64_t take_mismatches() override { return card_.take_mismatches(); }

private:
    GpuCard card_{kStreamCount};
};

std::uint64_t argument(int count, char** values, int index, std::uint64_t otherwise) {
    return count > index ? std::strtoull(values[index], nullptr, 10) : otherwise;
}

void print(const Outcome& outcome, const Setup& setup, double seconds) {
    const DeviceStatistics& statistics = outcome.statistics;
    std::cout << "{\"operations\": " << outcome.operations << ", \"seed\": " << setup.seed
              << ", \"limit_mib\": " << (setup.limit_bytes >> 20)
              << ", \"mismatches\": " << outcome.mismatches
              << ", \"detected_on_purpose\": " << outcome.detected_on_purpose
              << ", \"foreign_uses\": " << outcome.foreign_uses
              << ", \"moved_chunks\": " << statistics.moved_chunks
              << ", \"moved_bytes\": " << statistics.moved_bytes
              << ", \"stream_waits\": " << statistics.stream_waits
              << ", \"host_waits\": " << statistics.num_sync_all_streams
              << ", \"ooms\": " << outcome.ooms
              << ", \"leaked_handles\": " << statistics.leaked_handles
              << ", \"reserved_at_end\": " << outcome.reserved_at_end
              << ", \"seconds\": " << seconds << "}\n";
}

int run(const Setup& setup, const char* text) {
    OnGpu card;
    auto driver = make_cuda_driver();
    if (!driver) { throw std::runtime_error(driver.status().message()); }
    const Result<Options> options = parse_options(text);
    if (!options) { throw std::runtime_error(options.status().message()); }
    auto allocator = Allocator::create(**driver, *options);
    if (!allocator) { throw std::runtime_error(allocator.status().message()); }
    const Status limited = (*allocator)->set_limit(0, setup.limit_bytes);
    if (!limited.ok()) { throw std::runtime_error(limited.message()); }
    const Strategy strategy = (*allocator)->strategy(0);
    if (strategy != Strategy::Paged && strategy != Strategy::Isolated) {
        throw std::runtime_error("this card cannot map memory, so that no chunk can move");
    }
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = Stress(**allocator, card, setup).run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    print(outcome, setup, seconds.count());
    const std::uint64_t alarms = (*allocator)->isolation_report(0).violation_count;
    if (alarms > 0) { std::cerr << "gpu_stress: " << alarms << " false alarms\n"; }
    const bool has_moved = outcome.statistics.moved_chunks > 0 || strategy == Strategy::Isolated;
    const bool is_good = outcome.mismatches == 0 && outcome.detected_on_purpose != 0 && has_moved &&
                         outcome.reserved_at_end == 0 && outcome.statistics.leaked_handles == 0 &&
                         alarms == 0;
    return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace gma::stress

int main(int count, char** values) {
    try {
        gma::stress::Setup setup;
        setup.operation_count = gma::stress::argument(count, values, 1, setup.operation_count);
        setup.limit_bytes = gma::stress::argument(count, values, 2, setup.limit_bytes >> 20) << 20;
        setup.seed = gma::stress::argument(count, values, 3, setup.seed);
        return gma::stress::run(setup, count > 4 ? values[4] : "");
    } catch (const std::exception& error) {
        std::cerr << "gpu_stress: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
