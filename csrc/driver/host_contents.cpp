#include "driver/host_contents.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace gma {
namespace {

constexpr Bytes kWordBytes = sizeof(std::uint32_t);

unsigned char* bytes_at(Address address) {
    return reinterpret_cast<unsigned char*>(address);  // NOLINT(performance-no-int-to-ptr)
}

unsigned char pattern_byte(std::uint32_t pattern, Address address) {
    return static_cast<unsigned char>(pattern >> (address % 4 * 8));
}

Status check_ranges(const char* name, const std::vector<ByteRange>& ranges) {
    const bool is_ordered = std::all_of(ranges.begin(), ranges.end(), [](const ByteRange& range) {
        return range.begin <= range.end;
    });
    if (is_ordered) { return Status(); }
    return Status(Code::DriverFailed, std::string(name) + " failed: a range ends before it begins",
                  kCudaInvalidValue);
}

// The whole words of the pattern within a range, empty where there are none.
ByteRange words_in(const ByteRange& range) {
    const Address begin = std::min(round_up(range.begin, kWordBytes), range.end);
    return {begin, std::max(begin, range.end / kWordBytes * kWordBytes)};
}

void write(const ByteRange& range, std::uint32_t pattern) {
    const ByteRange words = words_in(range);
    for (Address at = range.begin; at < words.begin; ++at) {
        *bytes_at(at) = pattern_byte(pattern, at);
    }
    std::fill_n(reinterpret_cast<std::uint32_t*>(bytes_at(words.begin)),
                (words.end - words.begin) / kWordBytes, pattern);
    for (Address at = words.end; at < range.end; ++at) {
        *bytes_at(at) = pattern_byte(pattern, at);
    }
}

std::optional<Finding> look_at(std::size_t index, const ByteRange& range, std::uint32_t pattern) {
    Finding finding{.range = index};
    for (Address address = range.begin; address < range.end;) {
        std::uint32_t word = ~pattern;
        if (address % kWordBytes == 0 && range.end - address >= kWordBytes) {
            std::memcpy(&word, bytes_at(address), kWordBytes);
        }
        if (word == pattern) {
            address += kWordBytes;
            continue;
        }
        if (*bytes_at(address) != pattern_byte(pattern, address) && finding.bad_bytes++ == 0) {
            finding.first_bad = address;
        }
        ++address;
    }
    if (finding.bad_bytes == 0) { return std::nullopt; }
    const Address shown_end = std::min(range.end, finding.first_bad + finding.found.size());
    std::copy(bytes_at(finding.first_bad), bytes_at(shown_end), finding.found.begin());
    return finding;
}

}  // namespace

Status HostContents::fill(int device, Stream stream, const std::vector<ByteRange>& ranges,
                          std::uint32_t pattern) {
    if (Status status = check_ranges("fill", ranges); !status.ok()) { return status; }
    Status status =
        streams_.submit("fill", device, stream, [this, device, stream, ranges, pattern] {
            for (const ByteRange& range : ranges) {
                const ByteRange part = reachable(device, stream, range, true);
                if (memory_.has_contents()) { write(part, pattern); }
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
                if (const auto finding = look_at(index, part, pattern)) {
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
    if (pending == nullptr) {
        return Status(Code::DriverFailed, "checked failed: no such check", kCudaInvalidHandle);
    }
    const Status waited = wait ? streams_.synchronize(pending->event) : Status();
    Result<bool> passed = waited.ok() ? streams_.passed(pending->event) : Result<bool>(waited);
    if (passed && !*passed) { return false; }
    const std::shared_ptr<Outcome> outcome = pending->outcome;
    forget(check);
    if (!passed) { return passed; }
    if (outcome->is_illegal) {
        return Status(Code::DriverFailed, "checked failed: the check met an illegal address",
                      kCudaIllegalAddress);
    }
    findings.insert(findings.end(), outcome->findings.begin(), outcome->findings.end());
    return true;
}

void HostContents::forget(Check check) {
    const auto number = static_cast<std::uint64_t>(check);
    if (const Pending* pending = pending_.find(number)) {
        streams_.recycle(pending->event);
        pending_.erase(number);
    }
}

ByteRange HostContents::reachable(int device, Stream stream, const ByteRange& range,
                                  bool is_write) {
    const Address end = memory_.reachable_end(device, range.begin, range.end);
    if (end < range.end) { illegal_accesses_.push_back({device, stream, end, is_write}); }
    return {range.begin, end};
}

}  // namespace gma
