// Errors of calls that may not throw (a free, a hook): kept until Python asks. The list is bounded,
// as a program that frees wrongly does so often.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace gma {

struct DoorError {
    std::string call;  // "free", "record_stream", ...
    std::string message;
};
struct DoorErrors {
    std::vector<DoorError> kept;    // the first kMaxKeptErrors since the last take
    std::uint64_t total_count = 0;  // since the process began
};
inline constexpr std::size_t kMaxKeptErrors = 64;

// A forked child's frees are expected and not kept.
void note_door_error(const char* call, const Status& status) noexcept;
DoorErrors take_door_errors();

}  // namespace gma
