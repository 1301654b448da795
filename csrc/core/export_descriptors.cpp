#include "core/export_descriptors.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace gma {
namespace {

// Of fixed size and without a lock: the handler runs in a child whose parent may have held one. A
// descriptor beyond the table works too; only children do not close it.
constexpr std::size_t kSlots = 8192;
constexpr int kEmpty = 0;  // a slot holds descriptor + 1
std::array<std::atomic<int>, kSlots> slots;
std::atomic<std::size_t> slots_used{0};  // none beyond was ever used
std::atomic<bool> in_child{false};

void close_in_child() {
    in_child.store(true, std::memory_order_relaxed);
    const std::size_t count = slots_used.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < count; ++i) {
        const int value = slots[i].exchange(kEmpty, std::memory_order_relaxed);
        if (value != kEmpty) { ::close(value - 1); }
    }
}

bool replace(int from, int to) {
    for (std::size_t i = 0; i < kSlots; ++i) {
        int expected = from;
        if (slots[i].load(std::memory_order_relaxed) != from ||
            !slots[i].compare_exchange_strong(expected, to)) {
            continue;
        }
        std::size_t used = slots_used.load();
        while (used <= i && !slots_used.compare_exchange_weak(used, i + 1)) {}
        return true;
    }
    return false;
}

}  // namespace

void note_exported(int descriptor) noexcept {
    static const int kRegistered = ::pthread_atfork(nullptr, nullptr, close_in_child);
    static_cast<void>(kRegistered);
    replace(kEmpty, descriptor + 1);
}

void close_exported(int descriptor) noexcept {
    if (replace(descriptor + 1, kEmpty) || !in_child.load()) { ::close(descriptor); }
}

}  // namespace gma
