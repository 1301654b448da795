#include "torch/process_allocator.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "driver/cuda_driver.h"

namespace gma {
namespace {

struct Process {
    std::mutex mutex;  // guards all below
    Options options;
    std::unique_ptr<Driver> driver;
    std::unique_ptr<Allocator> allocator;
};

Process& process() {
    static Process* const kProcess = new Process();
    return *kProcess;
}

std::atomic<Allocator*> made{nullptr};

Status make_locked(Process& all) {
    if (all.allocator) { return {}; }
    if (!all.driver) {
        auto driver = make_cuda_driver();
        if (!driver) { return driver.status(); }
        all.driver = std::move(*driver);
    }
    auto allocator = Allocator::create(*all.driver, all.options);
    if (!allocator) { return allocator.status(); }
    all.allocator = std::move(*allocator);
    made.store(all.allocator.get(), std::memory_order_release);
    return {};
}

}  // namespace

Allocator* process_allocator_if_made() noexcept { return made.load(std::memory_order_acquire); }

Result<Allocator*> process_allocator() {
    if (Allocator* const ready = process_allocator_if_made()) { return ready; }
    Process& all = process();
    const std::lock_guard<std::mutex> lock(all.mutex);
    Status status = make_locked(all);
    if (!status.ok()) { return status; }
    return all.allocator.get();
}

Result<Driver*> process_driver() {
    auto allocator = process_allocator();
    if (!allocator) { return allocator.status(); }
    return process().driver.get();
}

Status configure_process_allocator(const Options& options) {
    Process& all = process();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.allocator) {
        return {Code::InvalidValue, "the allocator has served memory already, with the options " +
                                        print_options(all.options)};
    }
    all.options = options;
    return {};
}

Options process_options() {
    Process& all = process();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.allocator ? all.allocator->options() : all.options;
}

}  // namespace gma
