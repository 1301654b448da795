#include "driver/cuda_driver_contents.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "driver/pattern_bytes.h"

namespace gma {
namespace {

// Pieces are short while they are few.
constexpr Bytes kShortestPieceBytes = 4_KiB;
constexpr Bytes kPieceAlignment = 512;
constexpr Bytes kMostCuts = 4'096;

Bytes bytes_of(const std::vector<ByteRange>& ranges) {
    Bytes total = 0;
    for (const ByteRange& range : ranges) { total += range.end - range.begin; }
    return total;
}

Status no_such_check() {
    return Status(Code::DriverFailed, "checked failed: no such check",
                  static_cast<int>(CUDA_ERROR_INVALID_HANDLE));
}

}  // namespace

CudaContents::CudaContents(CudaContexts& contexts, CudaEvents& events)
    : contexts_(contexts),
      api_(contexts.api()),
      events_(events),
      staging_(contexts, events, CudaStaging::Contents::Anything),
      whole_staging_(contexts, events, CudaStaging::Contents::Zero),
      kernels_(contexts, pattern_image(), {kFillKernel, kCheckKernel, kLookKernel, kSweepKernel}) {}

Status CudaContents::fill(int device, CUstream stream, const std::vector<ByteRange>& ranges,
                          std::uint32_t pattern) {
    if (Status status = check_ranges("fill", ranges); !status.ok()) { return status; }
    const CurrentContext context(contexts_, device);
    if (!context.status().ok()) { return context.status(); }
    const Place place{device, stream};
    const auto* kernels = kernels_.of(device);
    const bool is_alone = ranges.size() == 1;
    std::vector<ByteRange> for_kernel;
    for (const ByteRange& range : ranges) {
        const ByteRange words = words_in(range);
        const Bytes bytes = range.end - range.begin;
        const bool is_whole = words.begin == range.begin && words.end == range.end;
        if (bytes == 0) { continue; }
        Status status;
        if (kernels == nullptr || (is_whole && (is_alone || bytes >= kMemsetBytes))) {
            status = fill_by_memset(place, range, pattern);
        } else if (bytes >= kMemsetBytes) {
            status = fill_by_memset(place, words, pattern);
            for_kernel.push_back({range.begin, words.begin});
            for_kernel.push_back({words.end, range.end});
        } else {
            for_kernel.push_back(range);
        }
        if (!status.ok()) { return status; }
    }
    if (for_kernel.empty()) { return Status(); }
    return fill_by_kernel(place, (*kernels)[kFill], for_kernel, pattern);
}

Result<Check> CudaContents::check(int device, CUstream stream, const std::vector<ByteRange>& ranges,
                                  std::uint32_t pattern) {
    if (Status status = check_ranges("check", ranges); !status.ok()) { return status; }
    const CurrentContext context(contexts_, device);
    if (!context.status().ok()) { return context.status(); }
    const Place place{device, stream};
    const auto* kernels = kernels_.of(device);
    if (kernels != nullptr && ranges.size() <= kLookedAtRanges &&
        bytes_of(ranges) <= kMostLookedAtBytes) {
        return look(place, (*kernels)[kLook], ranges, pattern);
    }
    Pending pending;
    pending.pattern = pattern;
    pending.ranges = ranges;
    pending.is_plain = kernels == nullptr;
    if (pending.is_plain) { pending.parts = ends_of(ranges); }
    Status status = pending.is_plain ? look_by_copy(place, pending)
                                     : look_by_kernel(place, (*kernels)[kCheck], pending);
    if (!status.ok()) { return status; }
    return pend(place, std::move(pending));
}

Result<Check> CudaContents::pend(const Place& place, Pending pending) {
    Result<CudaEvents::Entry*> entry = record(place);
    if (!entry) { return entry.status(); }  // the staging memory is lost: nobody tells its end
    pending.entry = *entry;
    return keep(std::move(pending));
}

Check CudaContents::keep(Pending pending) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const std::uintptr_t number = next_check_++;
    pending_.emplace(number, std::move(pending));
    return Check{number};
}

Result<bool> CudaContents::checked(Check check, bool wait, std::vector<Finding>& findings) {
    auto node = extract(check);
    if (node.empty() || node.mapped().entry == nullptr) { return no_such_check(); }
    Result<bool> passed = has_passed(*node.mapped().entry, wait);
    if (passed && !*passed) {
        const std::lock_guard<std::mutex> guard(mutex_);
        pending_.insert(std::move(node));
        return passed;
    }
    events_.give_back(node.mapped().entry);
    if (passed) { tell(node.mapped(), findings); }  // else the staging memory is lost
    return passed;
}

Status CudaContents::passed_check(Check check, std::vector<Finding>& findings) {
    const auto node = extract(check);
    if (node.empty()) { return no_such_check(); }
    if (node.mapped().entry != nullptr) { events_.give_back(node.mapped().entry); }
    tell(node.mapped(), findings);
    return {};
}

CudaContents::Node CudaContents::extract(Check check) {
    const std::lock_guard<std::mutex> guard(mutex_);
    return pending_.extract(static_cast<std::uintptr_t>(check));
}

void CudaContents::tell(const Pending& pending, std::vector<Finding>& findings) {
    if (pending.whole) {
        gather_whole(*pending.whole, findings);
        return whole_staging_.give_back(pending.staging);
    }
    if (pending.is_plain) {
        compare(pending, findings);
    } else {
        gather(pending, findings);
    }
    if (pending.staging.data != nullptr) { staging_.give_back(pending.staging); }
}

std::string CudaContents::shortcoming(int device) {
    const std::string lack = kernels_.lack(device);
    if (lack.empty()) { return {}; }
    return lack + "; so ranges above " + bytes_text(kPlainCheckBytes) +
           " are looked at in the halves of that at their ends only";
}

CudaContents::Pieces CudaContents::cut(const std::vector<ByteRange>& ranges) {
    const Bytes piece_bytes =
        std::max(kShortestPieceBytes, round_up(bytes_of(ranges) / kMostCuts, kPieceAlignment));
    Pieces cut;
    for (std::size_t index = 0; index < ranges.size(); ++index) {
        const ByteRange& range = ranges[index];
        for (Address begin = range.begin; begin < range.end;) {
            const Address full = (begin + piece_bytes) / kPieceAlignment * kPieceAlignment;
            const Address end = std::min(full, range.end);
            cut.pieces.push_back({begin, end, range.end});
            cut.range_of_piece.push_back(static_cast<std::uint32_t>(index));
            begin = end;
        }
    }
    return cut;
}

PatternArguments CudaContents::arguments(const CudaStaging::Block& staging, std::size_t piece_count,
                                         std::uint32_t pattern) {
    unsigned char* const findings = staging.data + piece_count * sizeof(PatternPiece);
    unsigned char* const flag = findings + piece_count * sizeof(PatternFinding);
    return {reinterpret_cast<const PatternPiece*>(staging.data),
            reinterpret_cast<PatternFinding*>(findings), reinterpret_cast<std::uint32_t*>(flag),
            static_cast<std::uint32_t>(piece_count), pattern};
}

Status CudaContents::failure(CUresult result, const char* name, Bytes bytes, const Place& place) {
    return result == CUDA_SUCCESS
               ? Status()
               : cuda_failure(api_, result, call_text(name, bytes, place.device));
}

Status CudaContents::fill_by_kernel(const Place& place, CUfunction kernel,
                                    const std::vector<ByteRange>& ranges, std::uint32_t pattern) {
    const Pieces pieces = cut(ranges);
    Result<CudaStaging::Block> staging =
        staging_.take(place.device, pieces.pieces.size() * sizeof(PatternPiece));
    if (!staging) { return staging.status(); }
    PatternArguments values = arguments(*staging, pieces.pieces.size(), pattern);
    Status status = launch(place, kernel, pieces, values);
    if (!status.ok()) {
        staging_.give_back(*staging);
        return status;
    }
    Result<CudaEvents::Entry*> entry = record(place);
    if (!entry) { return entry.status(); }
    staging_.give_back_after(*staging, *entry);
    return Status();
}

// The bytes of the pattern differ, so a byte that is in no whole word is a memset of its own.
Status CudaContents::fill_by_memset(const Place& place, const ByteRange& range,
                                    std::uint32_t pattern) {
    const ByteRange words = words_in(range);
    CUresult result = CUDA_SUCCESS;
    for (Address at = range.begin; result == CUDA_SUCCESS && at < range.end;) {
        if (at == words.begin && words.begin < words.end) {
            const Bytes count = (words.end - words.begin) / kPatternBytes;
            result = api_.cuMemsetD32Async(at, pattern, count, place.stream);
            at = words.end;
        } else {
            result = api_.cuMemsetD8Async(at, pattern_byte(pattern, at), 1, place.stream);
            ++at;
        }
    }
    return failure(result, "cuMemsetD32Async", range.end - range.begin, place);
}

Status CudaContents::launch(const Place& place, CUfunction kernel, const Pieces& pieces,
                            PatternArguments& arguments) {
    const std::size_t count = pieces.pieces.size();
    if (count == 0) { return Status(); }
    // Written by the host before the launch, so the card sees it.
    std::memcpy(const_cast<PatternPiece*>(arguments.pieces), pieces.pieces.data(),
                count * sizeof(PatternPiece));
    const auto block_count =
        static_cast<unsigned>((count + kPatternBlockPieces - 1) / kPatternBlockPieces);
    const CUresult result =
        launch_kernel(api_, kernel, block_count, kPatternBlockThreads, place.stream, &arguments);
    return failure(result, "cuLaunchKernel", count * sizeof(PatternPiece), place);
}

Status CudaContents::look_by_kernel(const Place& place, CUfunction kernel, Pending& pending) {
    Pieces pieces = cut(pending.ranges);
    const std::size_t count = pieces.pieces.size();
    const Bytes found_bytes = count * sizeof(PatternFinding) + sizeof(std::uint32_t);
    Result<CudaStaging::Block> staging =
        staging_.take(place.device, count * sizeof(PatternPiece) + found_bytes);
    if (!staging) { return staging.status(); }
    pending.staging = *staging;
    PatternArguments values = arguments(*staging, count, pending.pattern);
    std::memset(static_cast<void*>(values.findings), 0, found_bytes);
    Status status = launch(place, kernel, pieces, values);
    if (!status.ok()) { staging_.give_back(*staging); }
    pending.range_of_piece = std::move(pieces.range_of_piece);
    return status;
}

// Overruns and underruns begin at the ends.
std::vector<CudaContents::Part> CudaContents::ends_of(const std::vector<ByteRange>& ranges) {
    std::vector<Part> parts;
    for (std::size_t index = 0; index < ranges.size(); ++index) {
        const ByteRange& range = ranges[index];
        if (range.end - range.begin <= kPlainCheckBytes) {
            parts.push_back({index, range});
        } else {
            parts.push_back({index, {range.begin, range.begin + kPlainCheckBytes / 2}});
            parts.push_back({index, {range.end - kPlainCheckBytes / 2, range.end}});
        }
    }
    return parts;
}

Status CudaContents::look_by_copy(const Place& place, Pending& pending) {
    Bytes total_bytes = 0;
    for (const Part& part : pending.parts) { total_bytes += part.bytes.end - part.bytes.begin; }
    if (total_bytes == 0) { return Status(); }
    Result<CudaStaging::Block> staging = staging_.take(place.device, total_bytes);
    if (!staging) { return staging.status(); }
    pending.staging = *staging;
    unsigned char* to = staging->data;
    for (const Part& part : pending.parts) {
        const Bytes bytes = part.bytes.end - part.bytes.begin;
        if (bytes == 0) { continue; }
        const CUresult result = api_.cuMemcpyDtoHAsync(to, part.bytes.begin, bytes, place.stream);
        // What was copied before may still be on its way: the staging memory is lost.
        if (result != CUDA_SUCCESS) { return failure(result, "cuMemcpyDtoHAsync", bytes, place); }
        to += bytes;
    }
    return Status();
}

Result<CudaEvents::Entry*> CudaContents::record(const Place& place) {
    Result<CudaEvents::Entry*> entry = events_.take(place.device);
    if (!entry) { return entry; }
    const CUresult result = api_.cuEventRecord((*entry)->event, place.stream);
    if (result == CUDA_SUCCESS) { return entry; }
    events_.give_back(*entry);
    return cuda_failure(api_, result, "cuEventRecord(device " + std::to_string(place.device) + ")");
}

Result<bool> CudaContents::has_passed(const CudaEvents::Entry& entry, bool wait) {
    const CurrentContext context(contexts_, entry.device);
    if (!context.status().ok()) { return context.status(); }
    const RelaxedCapture relaxed(api_);
    const CUresult result =
        wait ? api_.cuEventSynchronize(entry.event) : api_.cuEventQuery(entry.event);
    if (result == CUDA_ERROR_NOT_READY) { return false; }
    if (result != CUDA_SUCCESS) {
        return cuda_failure(api_, result, wait ? "cuEventSynchronize" : "cuEventQuery");
    }
    return true;
}

// Pieces are in the order of the ranges and of the addresses.
void CudaContents::gather(const Pending& pending, std::vector<Finding>& findings) {
    const std::size_t count = pending.range_of_piece.size();
    const PatternArguments values = arguments(pending.staging, count, pending.pattern);
    if (*values.is_any_bad == 0) { return; }
    const std::size_t first = findings.size();
    for (std::size_t piece = 0; piece < count; ++piece) {
        const PatternFinding& found = values.findings[piece];
        if (found.bad_bytes == 0) { continue; }
        const std::size_t range = pending.range_of_piece[piece];
        if (findings.size() > first && findings.back().range == range) {
            findings.back().bad_bytes += found.bad_bytes;
            continue;
        }
        Finding finding{.range = range, .first_bad = found.first_bad, .bad_bytes = found.bad_bytes};
        std::memcpy(finding.found.data(), &found.found, finding.found.size());
        findings.push_back(finding);
    }
}

void CudaContents::compare(const Pending& pending, std::vector<Finding>& findings) {
    const unsigned char* at = pending.staging.data;
    const std::size_t first = findings.size();
    for (const Part& part : pending.parts) {
        const auto found = find_other(at, part.range, part.bytes, pending.pattern);
        at += part.bytes.end - part.bytes.begin;
        if (!found) { continue; }
        if (findings.size() > first && findings.back().range == part.range) {
            findings.back().bad_bytes += found->bad_bytes;
        } else {
            findings.push_back(*found);
        }
    }
}

}  // namespace gma
