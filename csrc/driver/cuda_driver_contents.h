// Driver::fill() and Driver::check() on NVIDIA cards.
//
// With kernels (csrc/kernels/pattern.cu) a call is one launch for all ranges, whose list goes
// through pinned memory; long ranges and single ones are filled by the driver's own memset, which
// is the fastest there. A check of one range, or with a fill of all around it, needs no list
// (cuda_driver_sweeps.cpp). Without kernels every range is a memset or several, and a check copies
// what it looks at to the host, which compares it: of ranges above kPlainCheckBytes only their
// ends.
//
// Nothing here runs under RelaxedCapture but what puts nothing into a stream: to fill in a capture
// is to be an error.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "driver/cuda_driver_contexts.h"
#include "driver/cuda_driver_events.h"
#include "driver/cuda_driver_kernels.h"
#include "driver/cuda_driver_staging.h"
#include "driver/driver.h"
#include "kernels/pattern.h"

namespace gma {

inline constexpr Bytes kPlainCheckBytes = 64_KiB;

class CudaContents {
public:
    CudaContents(CudaContexts& contexts, CudaEvents& events);

    Status fill(int device, CUstream stream, const std::vector<ByteRange>& ranges,
                std::uint32_t pattern);
    Result<Check> check(int device, CUstream stream, const std::vector<ByteRange>& ranges,
                        std::uint32_t pattern);
    CheckAndFill check_and_fill(int device, CUstream stream, const ByteRange& range,
                                const ByteRange& block, std::uint32_t pattern);
    Result<bool> checked(Check check, bool wait, std::vector<Finding>& findings);
    Status passed_check(Check check, std::vector<Finding>& findings);
    std::string shortcoming(int device);

private:
    static constexpr std::size_t kFill = 0;  // indices of the kernels
    static constexpr std::size_t kCheck = 1;
    static constexpr std::size_t kLook = 2;
    static constexpr std::size_t kSweep = 3;
    // So much is looked at without a list at most; its findings are half a percent of it.
    static constexpr Bytes kMostLookedAtBytes = 32_MiB;
    // Ranges from here on go to the driver's memset each, as its 2 us of the host are little then.
    static constexpr Bytes kMemsetBytes = 4_MiB;

    // What a check without kernels looks at of a range.
    struct Part {
        std::size_t range = 0;  // its index
        ByteRange bytes;
    };
    // Findings of a look, or of a sweep: of what lies before the block and behind it in turns.
    struct Whole {
        PatternFinding* findings = nullptr;  // zero where nothing was found
        std::uint32_t* is_any_bad = nullptr;
        std::uint32_t piece_count = 0;
        bool is_sweep = false;
        std::array<std::uint32_t, kLookedAtRanges>
            piece_counts{};  // of each range that is looked at
    };
    // From the call of check() until checked() has told what was found.
    struct Pending {
        CudaEvents::Entry* entry = nullptr;  // passes when `staging` is written; a sweep has none
        CudaStaging::Block staging;
        std::uint32_t pattern = 0;
        std::vector<ByteRange> ranges;
        // With kernels: staging holds the findings of all pieces, and each piece's range is here.
        // Without: the contents of the parts, one behind the other.
        std::vector<std::uint32_t> range_of_piece;
        std::vector<Part> parts;
        bool is_plain = false;
        std::optional<Whole> whole;  // then `staging` is of whole_staging_
    };

    // One for each piece, in the order of the ranges.
    struct Pieces {
        std::vector<PatternPiece> pieces;
        std::vector<std::uint32_t> range_of_piece;
    };
    static std::vector<Part> ends_of(const std::vector<ByteRange>& ranges);
    static Pieces cut(const std::vector<ByteRange>& ranges);
    // The list of pieces, behind it the findings, and behind them the flag.
    static PatternArguments arguments(const CudaStaging::Block& staging, std::size_t piece_count,
                                      std::uint32_t pattern);
    static void gather(const Pending& pending, std::vector<Finding>& findings);
    static void compare(const Pending& pending, std::vector<Finding>& findings);

    struct Place {
        int device;
        CUstream stream;
    };
    Result<Check> look(const Place& place, CUfunction kernel, const std::vector<ByteRange>& ranges,
                       std::uint32_t pattern);
    Result<Check> sweep(const Place& place, CUfunction kernel, const ByteRange& range,
                        const ByteRange& block, std::uint32_t pattern);
    Result<CudaStaging::Block> take_whole(const Place& place, std::size_t finding_count,
                                          Whole& whole);
    template <class Arguments>
    Result<Check> launch_whole(const Place& place, CUfunction kernel, Arguments& arguments,
                               const CudaStaging::Block& staging, const Whole& whole);
    using Node = std::map<std::uintptr_t, Pending>::node_type;
    Node extract(Check check);
    void tell(const Pending& pending, std::vector<Finding>& findings);
    static void gather_whole(const Whole& whole, std::vector<Finding>& findings);
    Result<Check> pend(const Place& place, Pending pending);
    Check keep(Pending pending);
    Status failure(CUresult result, const char* name, Bytes bytes, const Place& place);
    Status fill_by_kernel(const Place& place, CUfunction kernel,
                          const std::vector<ByteRange>& ranges, std::uint32_t pattern);
    Status fill_by_memset(const Place& place, const ByteRange& range, std::uint32_t pattern);
    Status launch(const Place& place, CUfunction kernel, const Pieces& pieces,
                  PatternArguments& arguments);
    Status look_by_kernel(const Place& place, CUfunction kernel, Pending& pending);
    Status look_by_copy(const Place& place, Pending& pending);
    Result<CudaEvents::Entry*> record(const Place& place);
    Result<bool> has_passed(const CudaEvents::Entry& entry, bool wait);

    CudaContexts& contexts_;
    const CudaEntryPoints& api_;
    CudaEvents& events_;
    CudaStaging staging_;
    CudaStaging whole_staging_;  // zero where nothing was found
    CudaKernels kernels_;
    std::mutex mutex_;
    std::uintptr_t next_check_ = 1;
    std::map<std::uintptr_t, Pending> pending_;
};

}  // namespace gma
