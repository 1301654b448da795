// How many driver calls apart the faults of a sweep lie. One thread alone has nothing for the
// thread sanitizer, under which a sweep of every call takes minutes: there it takes every seventh.
#pragma once

#include <cstdint>

namespace gma {

#if defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kFaultStep = 7;
#else
inline constexpr std::uint64_t kFaultStep = 1;
#endif

}  // namespace gma
