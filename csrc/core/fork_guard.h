// Whether this process was forked since something was made. A child has the memory of its parent's
// allocators but neither its device contexts nor its threads, and the locks as they were: it must
// stay out of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace gma {

namespace detail {
extern std::atomic<std::uint32_t> fork_generation;  // forks between the first process and this one
}

class ForkGuard {
public:
    // The first one asks the system to count forks; it may refuse.
    static Status prepare();

    ForkGuard() : made_in_(detail::fork_generation.load(std::memory_order_relaxed)) {}

    // One relaxed load.
    bool forked() const {
        return detail::fork_generation.load(std::memory_order_relaxed) != made_in_;
    }
    // Code::Forked in a child, with what to do about it.
    Status check() const;

private:
    const std::uint32_t made_in_;
};

}  // namespace gma
