// A range, and what lies around a block in it, in one launch without a list.
#include <algorithm>
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
                sweep({device, stream}, (*kernels)[kSweep], range, block, pattern, true);
            Status filled = asked ? Status() : asked.status();
            return {std::move(asked), std::move(filled)};
        }
    }
    Result<Check> asked = check(device, stream, gaps, pattern);
    return {std::move(asked), fill(device, stream, {range}, pattern)};
}

Result<Check> CudaContents::sweep(const Place& place, CUfunction kernel, const ByteRange& range,
                                  const ByteRange& block, std::uint32_t pattern, bool fills) {
    const std::uint32_t count = sweep_piece_count(range.begin, range.end);
    const Bytes findings_bytes = 2 * count * sizeof(PatternFinding);
    Result<CudaStaging::Block> staging =
        swept_staging_.take(place.device, findings_bytes + sizeof(std::uint32_t));
    if (!staging) { return staging.status(); }
    unsigned char* const flag = staging->data + findings_bytes;
    Pending pending;
    pending.staging = *staging;
    pending.sweep = {range.begin,
                     range.end,
                     block.begin,
                     block.end,
                     reinterpret_cast<PatternFinding*>(staging->data),
                     reinterpret_cast<std::uint32_t*>(flag),
                     count,
                     pattern,
                     fills ? 1U : 0U};
    const unsigned block_count = (count + kPatternBlockPieces - 1) / kPatternBlockPieces;
    const CUresult result = count == 0
                                ? CUDA_SUCCESS
                                : launch_kernel(api_, kernel, block_count, kPatternBlockThreads,
                                                place.stream, &*pending.sweep);
    if (result != CUDA_SUCCESS) {
        swept_staging_.give_back(*staging);
        return failure(result, "cuLaunchKernel", range.end - range.begin, place);
    }
    return pend(place, std::move(pending));
}

// First of all before the block, then of all behind it. Leaves zeros.
void CudaContents::gather_sweep(const Pending& pending, std::vector<Finding>& findings) {
    const SweepArguments& sweep = *pending.sweep;
    if (*sweep.is_any_bad == 0) { return; }
    for (const std::size_t range : {0, 1}) {
        Finding sum{.range = range};
        for (std::size_t piece = 0; piece < sweep.piece_count; ++piece) {
            const PatternFinding& found = sweep.findings[2 * piece + range];
            if (found.bad_bytes == 0) { continue; }
            if (sum.bad_bytes == 0) {
                sum.first_bad = found.first_bad;
                std::memcpy(sum.found.data(), &found.found, sum.found.size());
            }
            sum.bad_bytes += found.bad_bytes;
        }
        if (sum.bad_bytes > 0) { findings.push_back(sum); }
    }
    std::fill_n(sweep.findings, 2 * sweep.piece_count, PatternFinding{});
    *sweep.is_any_bad = 0;
}

}  // namespace gma
