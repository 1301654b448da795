// What a test sees and moves of the host driver; the Driver itself is in host_driver.cpp.
#include <algorithm>
#include <utility>

#include "driver/host_driver.h"

namespace gma {

using Guard = std::lock_guard<std::mutex>;

void HostDriver::launch(Stream stream, HostKernel kernel, int device) {
    const Guard guard(mutex_);
    streams_.launch(device, stream, std::move(kernel));
}

std::shared_ptr<const HostAccess> HostDriver::launch_write(Stream stream, const ByteRange& range,
                                                           std::vector<unsigned char> bytes,
                                                           int device) {
    const Guard guard(mutex_);
    return contents_.access(device, stream, range, std::move(bytes));
}

std::shared_ptr<const HostAccess> HostDriver::launch_read(Stream stream, const ByteRange& range,
                                                          int device) {
    const Guard guard(mutex_);
    return contents_.access(device, stream, range, {});
}

std::size_t HostDriver::advance(Stream stream, std::size_t count, int device) {
    const Guard guard(mutex_);
    return streams_.advance(device, stream, count);
}

std::size_t HostDriver::drain(Stream stream, int device) {
    const Guard guard(mutex_);
    return streams_.advance(device, stream, ~std::size_t{0});
}

void HostDriver::drain_all() {
    const Guard guard(mutex_);
    streams_.drain_all();
}

std::size_t HostDriver::queued_operations(Stream stream, int device) {
    const Guard guard(mutex_);
    return streams_.queued(device, stream);
}

void HostDriver::set_time_ns(std::uint64_t now_ns) {
    const Guard guard(mutex_);
    streams_.set_time_ns(std::max(now_ns, streams_.time_ns()));
}

void HostDriver::hold(Stream stream, int device) {
    const Guard guard(mutex_);
    streams_.hold(device, stream);
}

void HostDriver::let_go(Stream stream, int device) {
    const Guard guard(mutex_);
    streams_.let_go(device, stream);
}

void HostDriver::set_capturing(Stream stream, bool is_capturing, int device) {
    const Guard guard(mutex_);
    streams_.set_capturing(device, stream, is_capturing);
}

std::uint64_t HostDriver::capture_violations() {
    const Guard guard(mutex_);
    return streams_.capture_violations();
}

void HostDriver::destroy_stream(Stream stream, int device) {
    const Guard guard(mutex_);
    streams_.destroy(device, stream);
}

void HostDriver::reuse_stream(Stream stream, int device) {
    const Guard guard(mutex_);
    streams_.reuse(device, stream);
}

CallTotals HostDriver::totals() {
    const Guard guard(mutex_);
    return calls_.totals();
}

void HostDriver::reset_totals() {
    const Guard guard(mutex_);
    calls_.reset_totals();
}

void HostDriver::fail_call(std::uint64_t k, std::optional<Code> code, std::uint64_t times) {
    const Guard guard(mutex_);
    calls_.add_fault({.call = {}, .skip = k - 1, .times = times, .code = code});
}

void HostDriver::fail_kind(Call call, std::uint64_t k, std::optional<Code> code,
                           std::uint64_t times) {
    const Guard guard(mutex_);
    calls_.add_fault({.call = call, .skip = k - 1, .times = times, .code = code});
}

std::uint64_t HostDriver::faults_fired() {
    const Guard guard(mutex_);
    return calls_.fired_count();
}

void HostDriver::clear_faults() {
    const Guard guard(mutex_);
    calls_.clear_faults();
}

std::uint64_t HostDriver::card_memory_calls() {
    const Guard guard(mutex_);
    return card_memory_calls_;
}

std::uint64_t HostDriver::fallible_calls() {
    const Guard guard(mutex_);
    return calls_.fallible_count();
}

std::size_t HostDriver::live_handles() {
    const Guard guard(mutex_);
    return memory_.live_handles();
}

Bytes HostDriver::mapped_bytes() {
    Bytes total = 0;
    for (const HostMapping& mapping : mapped_ranges()) { total += mapping.bytes; }
    return total;
}

Bytes HostDriver::held_bytes(int device) {
    const Guard guard(mutex_);
    return memory_.held_bytes(device);
}

std::size_t HostDriver::outstanding_events() {
    const Guard guard(mutex_);
    return streams_.outstanding_events();
}

std::vector<HostMapping> HostDriver::mapped_ranges() {
    const Guard guard(mutex_);
    return memory_.mappings();
}

std::vector<HostRange> HostDriver::reserved_ranges() {
    const Guard guard(mutex_);
    return memory_.reserved_ranges();
}

std::vector<HostRange> HostDriver::segments() {
    const Guard guard(mutex_);
    return memory_.segments();
}

std::optional<HostMapping> HostDriver::mapping_at(Address address) {
    const Guard guard(mutex_);
    return memory_.mapping_at(address);
}

std::vector<HostIllegalAccess> HostDriver::illegal_accesses() {
    const Guard guard(mutex_);
    return contents_.illegal_accesses();
}

}  // namespace gma
