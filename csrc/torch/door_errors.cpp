#include "torch/door_errors.h"

#include <mutex>
#include <utility>

namespace gma {
namespace {

struct Kept {
    std::mutex mutex;
    DoorErrors errors;
};
Kept& kept() {
    static Kept* const kKept = new Kept();
    return *kKept;
}

}  // namespace

void note_door_error(const char* call, const Status& status) noexcept {
    if (status.ok() || status.code() == Code::Forked) { return; }
    try {
        Kept& all = kept();
        const std::lock_guard<std::mutex> lock(all.mutex);
        ++all.errors.total_count;
        if (all.errors.kept.size() < kMaxKeptErrors) {
            all.errors.kept.push_back({call, status.message()});
        }
    } catch (...) {  // the host is out of memory: the count is what remains
    }
}

DoorErrors take_door_errors() {
    Kept& all = kept();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return {std::exchange(all.errors.kept, {}), all.errors.total_count};
}

}  // namespace gma
