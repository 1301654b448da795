// What a driver call costs on an idle card (one NVIDIA H200, driver 580; docs/facts.md), so that a
// replay can say how long the driver would have taken. Linear in the size between the measured
// rows, flat below the first, extended along the last piece above the last.
#pragma once

#include <array>
#include <cstddef>

#include "base/units.h"
#include "driver/driver.h"

namespace gma {

struct CostPoint {
    Bytes bytes;
    double ns;
};

using CostCurve = std::array<CostPoint, 5>;

constexpr double cost_on(const CostCurve& curve, Bytes bytes) {
    if (bytes <= curve.front().bytes) { return curve.front().ns; }
    std::size_t right = 1;
    while (right + 1 < curve.size() && bytes > curve[right].bytes) { ++right; }
    const CostPoint& low = curve[right - 1];
    const CostPoint& high = curve[right];
    const double share =
        static_cast<double>(bytes - low.bytes) / static_cast<double>(high.bytes - low.bytes);
    return low.ns + share * (high.ns - low.ns);
}

// Five times for the five measured sizes of a handle.
constexpr CostCurve handle_curve(double us_2m, double us_32m, double us_128m, double us_512m,
                                 double us_2g) {
    return {{{2_MiB, us_2m * 1e3},
             {32_MiB, us_32m * 1e3},
             {128_MiB, us_128m * 1e3},
             {512_MiB, us_512m * 1e3},
             {2_GiB, us_2g * 1e3}}};
}

// Of whole segments only the ends were measured: a straight line joins them.
constexpr CostCurve segment_curve(double us_2m, double us_2g) {
    CostCurve curve = handle_curve(us_2m, 0, 0, 0, us_2g);
    for (std::size_t i = 1; i + 1 < curve.size(); ++i) {
        const double share =
            static_cast<double>(curve[i].bytes - 2_MiB) / static_cast<double>(2_GiB - 2_MiB);
        curve[i].ns = (us_2m + share * (us_2g - us_2m)) * 1e3;
    }
    return curve;
}

inline constexpr CostCurve kCreateCost = handle_curve(12, 12, 15, 19, 73);
inline constexpr CostCurve kMapCost = handle_curve(1.0, 0.9, 1.0, 1.2, 1.3);
inline constexpr CostCurve kSetAccessCost = handle_curve(29, 27, 29, 54, 97);
inline constexpr CostCurve kUnmapCost = handle_curve(20, 18, 18, 26, 40);
inline constexpr CostCurve kReleaseCost = handle_curve(14, 28, 78, 300, 1119);
inline constexpr CostCurve kMallocCost = segment_curve(41, 180);
inline constexpr CostCurve kFreeCost = segment_curve(35, 800);
inline constexpr double kEventNs = 330;
inline constexpr double kWaitNs = 330;
inline constexpr double kQueryNs = 290;
inline constexpr double kContentNs =
    3'000;  // one launch, however many ranges; a guess until it is measured

// `bytes` is the size of the handle or segment. A synchronisation costs the driver nothing of its
// own: what it costs is the wait, and that is the caller's.
constexpr double call_cost_ns(Call call, Bytes bytes) {
    switch (call) {
        case Call::Create:
            return cost_on(kCreateCost, bytes);
        case Call::Map:
            return cost_on(kMapCost, bytes);
        case Call::SetAccess:
            return cost_on(kSetAccessCost, bytes);
        case Call::Unmap:
            return cost_on(kUnmapCost, bytes);
        case Call::Release:
            return cost_on(kReleaseCost, bytes);
        case Call::Malloc:
            return cost_on(kMallocCost, bytes);
        case Call::Free:
            return cost_on(kFreeCost, bytes);
        case Call::Event:
            return kEventNs;
        case Call::Wait:
            return kWaitNs;
        case Call::Synchronize:
            return 0;
        case Call::Fill:
        case Call::Check:
            return kContentNs;
    }
    return 0;
}

static_assert(call_cost_ns(Call::Create, 2_MiB) == 12'000);
static_assert(call_cost_ns(Call::Release, 2_GiB) == 1'119'000);
static_assert(call_cost_ns(Call::Unmap, 512_B) == call_cost_ns(Call::Unmap, 2_MiB));
static_assert(call_cost_ns(Call::Malloc, 2_GiB) == 180'000);
static_assert(call_cost_ns(Call::Free, 4_GiB) > call_cost_ns(Call::Free, 2_GiB));

}  // namespace gma
