// The process's allocator and the C entry points over a driver of ours. One case: it is made once.
#include <doctest.h>

#include <memory>
#include <utility>

#include "core/allocator.h"
#include "driver/host_driver.h"
#include "torch/door_errors.h"
#include "torch/microbench.h"
#include "torch/process_allocator.h"
#include "torch/stock_door.h"

namespace gma {

TEST_CASE("process allocator: entry points serve from the driver that was given, for good") {
    CHECK(process_allocator_if_made() == nullptr);
    gma_free(reinterpret_cast<void*>(0x1000), 8, 0, nullptr);  // nothing was served: not ours
    CHECK(take_door_errors().total_count == 0);

    auto driver = std::make_unique<HostDriver>();
    HostDriver& host = *driver;
    const Options options{.max_chunk_mb = 4};
    REQUIRE(use_driver_for_measurement(std::move(driver), options).ok());
    CHECK(process_allocator_if_made() != nullptr);
    CHECK(*process_driver() == &host);
    CHECK(process_options().max_chunk_mb == 4);

    void* const pointer = gma_malloc(3_MiB, 0, nullptr);
    CHECK(process_allocator_if_made()->statistics(0).allocated_bytes[0].current == 3_MiB);
    CHECK(host.live_handles() > 0);
    gma_free(pointer, 3_MiB, 0, nullptr);
    CHECK(process_allocator_if_made()->statistics(0).allocated_bytes[0].current == 0);
    CHECK(take_door_errors().total_count == 0);
    gma_free(pointer, 3_MiB, 0, nullptr);
    CHECK(take_door_errors().total_count == 1);

    Status again = use_driver_for_measurement(std::make_unique<HostDriver>(), options);
    CHECK(again.code() == Code::InvalidValue);
    CHECK(*process_driver() == &host);
    CHECK(configure_process_allocator({}).code() == Code::InvalidValue);
    CHECK(microbench({}, 0.001).status().code() == Code::InvalidValue);
}

}  // namespace gma
