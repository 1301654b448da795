// What PyTorch's NCCL process group reads of a pool before it registers the segments in it, which
// Python's snapshots leave out.
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <cstdint>

// The segments of a pool in the snapshot's order: begin, bytes and number of each, at most
// `capacity` of them. Returns how many there are.
extern "C" std::size_t segments_of_pool(std::uint64_t first, std::uint64_t second,
                                        std::int64_t (*found)[3], std::size_t capacity) {
    const auto snapshot = c10::cuda::CUDACachingAllocator::get()->snapshot({first, second});
    std::size_t count = 0;
    for (const auto& segment : snapshot.segments) {
        if (count < capacity) {
            found[count][0] = static_cast<std::int64_t>(segment.address);
            found[count][1] = static_cast<std::int64_t>(segment.total_size);
            found[count][2] = segment.registration_counter;
        }
        ++count;
    }
    return count;
}
