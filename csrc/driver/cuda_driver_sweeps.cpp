// A few ranges, or what lies around a block in one, in one launch without a list.
#include <cstring>
#include <utility>

#include "driver/cuda_driver_contents.h"
#include "driver/pattern_bytes.h"

namespace gma {

CheckAndFill CudaContents::check_and_fill(int device, CUstream stream, const ByteRange& range,
                                          const ByteRange& block, std::uint32_t pattern) {
    const std::vector<ByteRange> gaps = {{range.begin, block.begin}, {block.end, range.end}};
    if (Status status = check_ranges("check", gaps); !status.ok()) { return {status, status}; }
    if (range.end - range.begin < kMemsetBytes) {
        const CurrentContext context(contexts_, device);
        if (!context.status().ok()) { return {context.status(), context.status()}; }
        if (const auto* kernels = kernels_.of(device)) {
            Result<Check> asked =
                sweep({device, stream}, (*kernels)[kSweep], range, block, pattern);
            Status filled = asked ? Status() : fill(device, stream, {range}, pattern);
            return {std::move(asked), std::move(filled)};
        }
    }
    Result<Check> asked = check(device, stream, gaps, pattern);
    return {std::move(asked), fill(device, stream, {range}, pattern)};
}

Result<Check> CudaContents::look(const Place& place, CUfunction kernel,
                                 const std::vector<ByteRange>& ranges, std::uint32_t pattern) {
    Whole whole;
    LookArguments arguments{};
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        arguments.ranges[i] = {ranges[i].begin, ranges[i].end};
        whole.piece_counts[i] = whole_piece_count(ranges[i].begin, ranges[i].end);
        arguments.piece_counts[i] = whole.piece_counts[i];
        whole.piece_count += whole.piece_counts[i];
    }
    Result<CudaStaging::Block> staging = take_whole(place, whole.piece_count, whole);
    if (!staging) { return staging.status(); }
    arguments.range_count = static_cast<std::uint32_t>(ranges.size());
    arguments.pattern = pattern;
    return launch_whole(place, kernel, arguments, *staging, whole);
}

Result<Check> CudaContents::sweep(const Place& place, CUfunction kernel, const ByteRange& range,
                                  const ByteRange& block, std::uint32_t pattern) {
    Whole whole;
    whole.is_sweep = true;
    whole.piece_count = whole_piece_count(range.begin, range.end);
    Result<CudaStaging::Block> staging = take_whole(place, 2 * whole.piece_count, whole);
    if (!staging) { return staging.status(); }
    SweepArguments arguments{};
    arguments.begin = range.begin;
    arguments.end = range.end;
    arguments.block_begin = block.begin;
    arguments.block_end = block.end;
    arguments.pattern = pattern;
    return launch_whole(place, kernel, arguments, *staging, whole);
}

Result<CudaStaging::Block> CudaContents::take_whole(const Place& place, std::size_t finding_count,
                                                    Whole& whole) {
    const Bytes findings_bytes = finding_count * sizeof(PatternFinding);
    Result<CudaStaging::Block> staging =
        whole_staging_.take(place.device, findings_bytes + sizeof(std::uint32_t));
    if (staging) {
        whole.findings = reinterpret_cast<PatternFinding*>(staging->data);
        whole.is_any_bad = reinterpret_cast<std::uint32_t*>(staging->data + findings_bytes);
    }
    return staging;
}

template <class Arguments>
Result<Check> CudaContents::launch_whole(const Place& place, CUfunction kernel,
                                         Arguments& arguments, const CudaStaging::Block& staging,
                                         const Whole& whole) {
    arguments.findings = whole.findings;
    arguments.is_any_bad = whole.is_any_bad;
    arguments.piece_count = whole.piece_count;
    const std::uint32_t count = whole.piece_count;
    const unsigned block_count = (count + kPatternBlockPieces - 1) / kPatternBlockPieces;
    const CUresult result = count == 0
                                ? CUDA_SUCCESS
                                : launch_kernel(api_, kernel, block_count, kPatternBlockThreads,
                                                place.stream, &arguments);
    if (result != CUDA_SUCCESS) {
        whole_staging_.give_back(staging);
        return failure(result, "cuLaunchKernel", count * kWholePieceBytes, place);
    }
    Pending pending;
    pending.staging = staging;
    pending.whole = whole;
    if (whole.is_sweep) { return keep(std::move(pending)); }
    return pend(place, std::move(pending));
}

// In the order of the ranges, one for each. Leaves zeros.
void CudaContents::gather_whole(const Whole& whole, std::vector<Finding>& findings) {
    if (*whole.is_any_bad == 0) { return; }
    const std::size_t step = whole.is_sweep ? 2 : 1;
    const std::size_t range_count = whole.is_sweep ? 2 : whole.piece_counts.size();
    PatternFinding* first = whole.findings;
    for (std::size_t range = 0; range < range_count; ++range) {
        const std::size_t count = whole.is_sweep ? whole.piece_count : whole.piece_counts[range];
        Finding sum{.range = range};
        for (std::size_t piece = 0; piece < count; ++piece) {
            PatternFinding& found = first[step * piece];
            if (found.bad_bytes == 0) { continue; }
            if (sum.bad_bytes == 0) {
                sum.first_bad = found.first_bad;
                std::memcpy(sum.found.data(), &found.found, sum.found.size());
            }
            sum.bad_bytes += found.bad_bytes;
            found = {};
        }
        if (sum.bad_bytes > 0) { findings.push_back(sum); }
        first += whole.is_sweep ? 1 : count;
    }
    *whole.is_any_bad = 0;
}

}  // namespace gma
