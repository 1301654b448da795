// Where the model of the native policy gets the addresses of new segments from.
//
// PyTorch breaks ties between equal free blocks by address, so a trace is only reproduced exactly
// with the addresses that cudaMalloc gave then. They are taken from the trace in its order, per
// size, stream and pool; when it has none left (another setting, another round), addresses count up
// from a fixed place, so that two runs agree.
#pragma once

#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include "base/units.h"

namespace gma {

// A segment as a trace names it. Stream and pool are the trace's own numbers.
struct RecordedSegment {
    Address address = 0;
    Bytes bytes = 0;
    std::uint64_t stream = 0;
    std::uint32_t pool = 0;
};

class SegmentSource {
public:
    SegmentSource() = default;
    explicit SegmentSource(const std::vector<RecordedSegment>& recorded) {
        for (const RecordedSegment& segment : recorded) {
            queues_[{segment.bytes, segment.stream, segment.pool}].addresses.push_back(
                segment.address);
        }
    }

    Address take(Bytes bytes, std::uint64_t stream, std::uint32_t pool) {
        const auto found = queues_.find({bytes, stream, pool});
        if (found != queues_.end() && found->second.next < found->second.addresses.size()) {
            return found->second.addresses[found->second.next++];
        }
        const Address address = next_address_;
        next_address_ += round_up(bytes, kGranuleBytes);
        return address;
    }

private:
    struct Queue {
        std::vector<Address> addresses;
        std::size_t next = 0;
    };

    static constexpr Bytes kGranuleBytes = 2_MiB;
    std::map<std::tuple<Bytes, std::uint64_t, std::uint32_t>, Queue> queues_;
    Address next_address_ = 16_TiB;  // below what cudaMalloc returns
};

}  // namespace gma
