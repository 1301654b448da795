// What the driver's files share.
#pragma once

#include "rig.h"

// Every entry point counts itself first and returns the fault that a test asked for.
#define RIG_COUNT() \
    if (const CUresult fault = rig::count_call(__func__); fault != CUDA_SUCCESS) { return fault; }

template <class T>
std::uintptr_t number(T* handle) {
    return reinterpret_cast<std::uintptr_t>(handle);
}
