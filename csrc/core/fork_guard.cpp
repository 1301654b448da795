#include "core/fork_guard.h"

#include <pthread.h>

#include "core/thread_registry.h"

namespace gma {

namespace detail {
std::atomic<std::uint32_t> fork_generation{0};
}

namespace {

void in_child() {
    detail::fork_generation.fetch_add(1, std::memory_order_relaxed);
    forget_heaps();
}

}  // namespace

Status ForkGuard::prepare() {
    static const int kError = pthread_atfork(nullptr, nullptr, in_child);
    return kError == 0 ? Status() : Status(Code::NotSupported, "pthread_atfork failed", kError);
}

Status ForkGuard::check() const {
    if (!forked()) { return {}; }
    return {Code::Forked,
            "gpumem_alloc: this process was forked after GPU memory had been allocated.\n"
            "CUDA does not work in such a child.\n"
            "Start it with 'spawn' or 'forkserver', or touch no CUDA tensor in it."};
}

}  // namespace gma
