// The Driver on the CPU: CUDA's rules, streams and events as a timeline that the test moves, a
// capacity, faults on demand, and what the calls would have cost. It is built of four parts
// behind one lock: host_address_space (memory), host_streams (time), host_contents (what is filled
// and checked), host_calls (counts, faults).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "driver/host_address_space.h"
#include "driver/host_calls.h"
#include "driver/host_config.h"
#include "driver/host_contents.h"
#include "driver/host_streams.h"

namespace gma {

class HostDriver final : public Driver {
public:
    explicit HostDriver(const HostDriverConfig& config = {});

    bool is_card() const override { return false; }
    int device_count() override { return config_.device_count; }
    Result<DeviceProperties> properties(int device) override;
    Result<CardMemory> card_memory(int device) override;
    Result<Address> reserve(int device, Bytes bytes, Bytes alignment) override;
    Status unreserve(Address address, Bytes bytes) override;
    using Driver::create;
    Result<Handle> create(int device, Bytes bytes, Reach reach) override;
    Status map(Address address, Bytes bytes, Handle handle) override;
    using Driver::set_access;
    Status set_access(int device, Address address, Bytes bytes, Reach reach) override;
    Status unmap(Address address, Bytes bytes) override;
    Status release(int device, Handle handle, Bytes bytes) override;
    Result<int> export_handle(int device, Handle handle) override;
    Result<Handle> import_handle(int device, int descriptor, Bytes bytes) override;
    Result<Address> malloc(int device, Bytes bytes) override;
    Status free(int device, Address address) override;
    Result<Event> record(int device, Stream stream) override;
    Result<bool> passed(Event event) override;
    Status wait(Stream stream, Event event) override;
    Status synchronize(Event event) override;
    void recycle(Event event) noexcept override;
    Status fill(int device, Stream stream, const std::vector<ByteRange>& ranges,
                std::uint32_t pattern) override;
    Result<Check> check(int device, Stream stream, const std::vector<ByteRange>& ranges,
                        std::uint32_t pattern) override;
    Result<bool> checked(Check check, bool wait, std::vector<Finding>& findings) override;
    // Of what has not run yet nothing is found, and it runs later.
    Status passed_check(Check check, std::vector<Finding>& findings) override;
    std::string content_shortcoming(int) override { return {}; }
    Result<std::uint64_t> stream_id(int device, Stream stream) override;
    Result<bool> capturing(int device, Stream stream) override;
    Status synchronize_device(int device) override;

    // Timeline. Stream handles are any numbers; a stream exists from its first use. A kernel runs
    // under the driver's lock: it may touch memory, but must not call the driver.
    void launch(Stream stream, HostKernel kernel, int device = 0);
    // Kernels that touch memory as far as the device can reach it, wherever the range is.
    std::shared_ptr<const HostAccess> launch_write(Stream stream, const ByteRange& range,
                                                   std::vector<unsigned char> bytes,
                                                   int device = 0);
    std::shared_ptr<const HostAccess> launch_read(Stream stream, const ByteRange& range,
                                                  int device = 0);
    // Runs up to `count` queued operations (kernels, recorded events, waits), stopping at a wait
    // whose event has not passed; returns how many ran.
    std::size_t advance(Stream stream, std::size_t count = 1, int device = 0);
    std::size_t drain(Stream stream, int device = 0);
    void drain_all();
    std::size_t queued_operations(Stream stream, int device = 0);

    // Clock only. Time never runs backwards: an earlier time is ignored.
    void set_time_ns(std::uint64_t now_ns);
    // What is recorded on a held stream passes at let_go(), whatever the lag.
    void hold(Stream stream, int device = 0);
    void let_go(Stream stream, int device = 0);

    // While any stream captures, event queries and host waits fail, and so do record() and wait()
    // on that stream; capture_violations() counts such calls.
    void set_capturing(Stream stream, bool is_capturing, int device = 0);
    std::uint64_t capture_violations();
    // A destroyed stream refuses record(), wait() and stream_id(); what was queued still runs.
    // After reuse_stream() its handle is a new stream, with another id.
    void destroy_stream(Stream stream, int device = 0);
    void reuse_stream(Stream stream, int device = 0);

    CallTotals totals();
    void reset_totals();

    // Let `times` calls fail, the first being the k-th from now (k >= 1), of any kind or of one.
    // Without a code: OutOfMemory for create() and malloc(), DriverFailed for the others.
    void fail_call(std::uint64_t k, std::optional<Code> code = {}, std::uint64_t times = 1);
    void fail_kind(Call call, std::uint64_t k, std::optional<Code> code = {},
                   std::uint64_t times = 1);
    std::uint64_t faults_fired();    // since construction
    void clear_faults();             // those that have not fired never will
    std::uint64_t fallible_calls();  // calls so far that fail_call() could have met
    std::uint64_t card_memory_calls();

    // A handle lives while it is unreleased or mapped somewhere.
    std::size_t live_handles();
    Bytes mapped_bytes();  // an alias counts once for each place
    Bytes held_bytes(int device = 0);
    std::size_t outstanding_events();
    std::vector<HostMapping> mapped_ranges();  // in address order
    std::vector<HostRange> reserved_ranges();
    std::vector<HostRange> segments();  // what malloc() gave and free() has not taken
    std::optional<HostMapping> mapping_at(Address address);
    // What fill(), check() and the like met, in order, since construction; also without real
    // memory.
    std::vector<HostIllegalAccess> illegal_accesses();

private:
    Status begin(std::optional<Call> call, const char* name, int device);
    Status begin_mapping(std::optional<Call> call, const char* name, int device);

    const HostDriverConfig config_;
    std::mutex mutex_;
    HostCalls calls_;
    HostAddressSpace memory_;
    HostStreams streams_;
    HostContents contents_;
    std::uint64_t card_memory_calls_ = 0;
};

}  // namespace gma
