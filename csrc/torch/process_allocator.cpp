#include "torch/process_allocator.h"

#include <mutex>
#include <utility>

#include "driver/cuda_driver.h"

namespace gma {

constinit std::atomic<Allocator*> detail::made_allocator{nullptr};

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
    detail::made_allocator.store(all.allocator.get(), std::memory_order_release);
    return {};
}

Status made_already(const Process& all) {
    return {Code::InvalidValue, "the allocator has served memory already, with the options " +
                                    print_options(all.options)};
}

}  // namespace

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

Status use_driver_for_measurement(std::unique_ptr<Driver> driver, const Options& options) {
    Process& all = process();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.allocator) { return made_already(all); }
    all.options = options;
    all.driver = std::move(driver);
    Status status = make_locked(all);
    if (!status.ok()) { all.driver.reset(); }
    return status;
}

Status configure_process_allocator(const Options& options) {
    Process& all = process();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (all.allocator) { return made_already(all); }
    all.options = options;
    return {};
}

Options process_options() {
    Process& all = process();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.allocator ? all.allocator->options() : all.options;
}

}  // namespace gma
