// What a test may ask and set, through ctypes.
#include "rig.h"

RIG_EXPORT std::size_t rig_used_bytes(int device) { return rig::used_bytes(device); }
RIG_EXPORT long rig_call_count(const char* name) { return rig::call_count(name); }
RIG_EXPORT void rig_fail_call(const char* name, int result, long skip, long times) {
    rig::fail_call(name, result, skip, times);
}
RIG_EXPORT void rig_set_slow(std::uintptr_t stream, int slow) { rig::set_slow(stream, slow != 0); }
RIG_EXPORT void rig_finish(std::uintptr_t stream) { rig::finish(stream); }
RIG_EXPORT void rig_finish_all() { rig::finish_all(); }
RIG_EXPORT void rig_set_capturing(std::uintptr_t stream, int capturing) {
    rig::set_capturing(stream, capturing != 0);
}
