// Events without timing, kept for the next record(): making one costs several times a record.
#pragma once

#include <cuda.h>

#include <deque>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "driver/cuda_driver_contexts.h"
#include "driver/driver.h"

namespace gma {

class CudaEvents {
public:
    // What an Event of driver.h points to.
    struct Entry {
        CUevent event = nullptr;
        int device = 0;
    };

    explicit CudaEvents(CudaContexts& contexts);
    ~CudaEvents();
    CudaEvents(const CudaEvents&) = delete;
    CudaEvents& operator=(const CudaEvents&) = delete;

    // The device's context must be current.
    Result<Entry*> take(int device);
    void give_back(Entry* entry) noexcept;

    static Event event_of(Entry* entry) { return Event{reinterpret_cast<std::uintptr_t>(entry)}; }
    static Entry* entry_of(Event event) {
        return reinterpret_cast<Entry*>(event);  // NOLINT(performance-no-int-to-ptr)
    }

private:
    CudaContexts& contexts_;
    std::mutex mutex_;
    std::deque<Entry> entries_;              // all ever made; addresses are stable
    std::vector<std::vector<Entry*>> idle_;  // by device
};

}  // namespace gma
