// Pinned memory of the host that the cards read and write in stream order: lists of ranges on their
// way there, and what was found on its way back.
#pragma once

#include <cuda.h>

#include <array>
#include <deque>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "driver/cuda_driver_contexts.h"
#include "driver/cuda_driver_events.h"

namespace gma {

// Every card can use all of it, at the host's own addresses. It is never given back while the
// process runs: it is as much as was on its way at a time, in powers of two.
class CudaStaging {
public:
    struct Block {
        unsigned char* data = nullptr;
        std::size_t size_index = 0;  // kSmallestBytes << size_index
    };

    // Zero: its memory is zero when it is taken, and has to be when it is given back.
    enum class Contents : unsigned char { Anything, Zero };

    CudaStaging(CudaContexts& contexts, CudaEvents& events, Contents contents);
    ~CudaStaging();
    CudaStaging(const CudaStaging&) = delete;
    CudaStaging& operator=(const CudaStaging&) = delete;

    // The device's context must be current.
    Result<Block> take(int device, Bytes bytes);
    void give_back(Block block);
    // Once the stream has got there; the event too is given back then.
    void give_back_after(Block block, CudaEvents::Entry* entry);

private:
    static constexpr Bytes kSmallestBytes = 4_KiB;
    static constexpr Bytes kSlabBytes = 1_MiB;  // smaller blocks are cut from slabs of this size
    static constexpr std::size_t kSizeCount = 32;

    struct Slab {
        int device;  // in whose context it was made
        void* data;
    };
    struct InUse {
        Block block;
        CudaEvents::Entry* entry;
    };

    void collect_locked();
    Status add_locked(int device, std::size_t size_index);

    CudaContexts& contexts_;
    CudaEvents& events_;
    const Contents contents_;
    std::mutex mutex_;
    std::array<std::vector<Block>, kSizeCount> free_;
    std::deque<InUse> in_use_;
    std::vector<Slab> slabs_;
};

}  // namespace gma
