// Three tiers of checks, all of them alive:
//   Code::InvalidValue  the caller's mistakes, always on: returned with the evidence, never an exit
//   GMA_ASSERT          our own, in debug builds: prints what must hold and both sides, then aborts
//   Allocator::audit    recounts everything; around every call in the `audit` preset
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace gma {

// No heap use here: it may run while the heap is in doubt.
[[noreturn]] inline void assertion_failed(const char* relation, const char* must_hold,
                                          std::uint64_t left, std::uint64_t right, const char* file,
                                          int line) {
    std::fprintf(stderr,
                 "gpumem_alloc: %s:%d: %s must hold (%s), but left is %" PRIu64
                 " and right is %" PRIu64 "\n",
                 file, line, relation, must_hold, left, right);
    std::abort();
}

[[noreturn]] inline void audit_failed(const char* when, const char* message) {
    std::fprintf(stderr, "gpumem_alloc: %s %s\n", when, message);
    std::abort();
}

}  // namespace gma

#ifdef NDEBUG
#define GMA_ASSERT_RELATION(left, operation, right, must_hold) \
    static_cast<void>(sizeof((left)operation(right)))
#else
#define GMA_ASSERT_RELATION(left, operation, right, must_hold)                              \
    do {                                                                                    \
        if (!((left)operation(right))) {                                                    \
            ::gma::assertion_failed(#left " " #operation " " #right, must_hold,             \
                                    static_cast<std::uint64_t>(left),                       \
                                    static_cast<std::uint64_t>(right), __FILE__, __LINE__); \
        }                                                                                   \
    } while (false)
#endif

#define GMA_ASSERT_EQ(left, right, must_hold) GMA_ASSERT_RELATION(left, ==, right, must_hold)
#define GMA_ASSERT_LE(left, right, must_hold) GMA_ASSERT_RELATION(left, <=, right, must_hold)
#define GMA_ASSERT_LT(left, right, must_hold) GMA_ASSERT_RELATION(left, <, right, must_hold)
