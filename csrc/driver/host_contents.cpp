#include "driver/host_contents.h"

#include <algorithm>
#include <string>
#include <utility>

#include "driver/pattern_bytes.h"

namespace gma {
namespace {

unsigned char* bytes_at(Address address) {
    return reinterpret_cast<unsigned char*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

Status HostContents::fill(int device, Stream stream, const std::vector<ByteRange>& ranges,
                          std::uint32_t pattern) {
    if (Status status = check_ranges("fill", ranges); !status.ok()) { return status; }
    Status status =
        streams_.submit("fill", device, stream, [this, device, stream, ranges, pattern] {
            for (const ByteRange& range : ranges) {
                const ByteRange part = reachable(device, stream, range, true);
                if (memory_.has_contents()) { write_pattern(bytes_at(part.begin), part, pattern); }
            }
        });
    if (status.ok()) { calls_.charge(Call::Fill, 0); }
    return status;
}

Result<Check> HostContents::check(int device, Stream stream, const std::vector<ByteRange>& ranges,
                                  std::uint32_t pattern) {
    if (Status status = check_ranges("check", ranges); !status.ok()) { return status; }
    auto outcome = std::make_shared<Outcome>();
    Result<Event> event = streams_.submit_marked(
        "check", device, stream, [this, device, stream, ranges, pattern, outcome] {
            for (std::size_t index = 0; index < ranges.size(); ++index) {
                const ByteRange part = reachable(device, stream, ranges[index], false);
                outcome->is_illegal |= part.end < ranges[index].end;
                if (!memory_.has_contents()) { continue; }
                if (const auto finding = find_other(bytes_at(part.begin), index, part, pattern)) {
                    outcome->findings.push_back(*finding);
                }
            }
        });
    if (!event) { return event.status(); }
    calls_.charge(Call::Check, 0);
    return Check{pending_.insert({*event, std::move(outcome)})};
}

Result<bool> HostContents::checked(Check check, bool wait, std::vector<Finding>& findings) {
    const Pending* pending = pending_.find(static_cast<std::uint64_t>(check));
    if (pending == nullptr) { return passed_check(check, findings); }
    const Status waited = wait ? streams_.synchronize(pending->event) : Status();
    Result<bool> passed = waited.ok() ? streams_.passed(pending->event) : Result<bool>(waited);
    if (passed && !*passed) { return false; }
    if (!passed) {
        forget(check);
        return passed;
    }
    if (Status status = passed_check(check, findings); !status.ok()) { return status; }
    return true;
}

Status HostContents::passed_check(Check check, std::vector<Finding>& findings) {
    const Pending* pending = pending_.find(static_cast<std::uint64_t>(check));
    if (pending == nullptr) {
        return Status(Code::DriverFailed, "checked failed: no such check", kCudaInvalidHandle);
    }
    const std::shared_ptr<Outcome> outcome = pending->outcome;
    forget(check);
    if (outcome->is_illegal) {
        return Status(Code::DriverFailed, "checked failed: the check met an illegal address",
                      kCudaIllegalAddress);
    }
    findings.insert(findings.end(), outcome->findings.begin(), outcome->findings.end());
    return {};
}

void HostContents::forget(Check check) {
    const auto number = static_cast<std::uint64_t>(check);
    if (const Pending* pending = pending_.find(number)) {
        streams_.recycle(pending->event);
        pending_.erase(number);
    }
}

std::shared_ptr<const HostAccess> HostContents::access(int device, Stream stream,
                                                       const ByteRange& range,
                                                       std::vector<unsigned char> bytes) {
    auto access = std::make_shared<HostAccess>();
    access->bytes = std::move(bytes);
    streams_.launch(device, stream, [this, device, stream, range, access] {
        const bool is_write = !access->bytes.empty();
        access->is_illegal = reachable(device, stream, range, is_write).end < range.end;
        if (access->is_illegal || !memory_.has_contents()) { return; }
        if (is_write) {
            std::copy(access->bytes.begin(), access->bytes.end(), bytes_at(range.begin));
        } else {
            access->bytes.assign(bytes_at(range.begin), bytes_at(range.end));
        }
    });
    return access;
}

ByteRange HostContents::reachable(int device, Stream stream, const ByteRange& range,
                                  bool is_write) {
    const Address end = memory_.reachable_end(device, range.begin, range.end);
    if (end < range.end) { illegal_accesses_.push_back({device, stream, end, is_write}); }
    return {range.begin, end};
}

}  // namespace gma
