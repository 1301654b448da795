// What Driver::fill() and Driver::check() do on the CPU, as operations of a stream. Memory that the
// device cannot reach is not touched, so that no mistake of the caller ends the process; as on a
// card the access is illegal, and it is noted. Unlike on a card, all else goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "driver/driver.h"
#include "driver/host_address_space.h"
#include "driver/host_calls.h"
#include "driver/host_slots.h"
#include "driver/host_streams.h"

namespace gma {

struct HostIllegalAccess {
    int device = 0;
    Stream stream = nullptr;
    Address address = 0;
    bool is_write = false;
};

// A plain access to memory by one kernel. Written by the stream: to be read when it has got there.
struct HostAccess {
    std::vector<unsigned char> bytes;  // what was read, or is to be written
    bool is_illegal = false;           // then nothing was touched
};

// Not locked: its owner is.
class HostContents {
public:
    HostContents(HostAddressSpace& memory, HostStreams& streams, HostCalls& calls)
        : memory_(memory), streams_(streams), calls_(calls) {}

    Status fill(int device, Stream stream, const std::vector<ByteRange>& ranges,
                std::uint32_t pattern);
    Result<Check> check(int device, Stream stream, const std::vector<ByteRange>& ranges,
                        std::uint32_t pattern);
    Result<bool> checked(Check check, bool wait, std::vector<Finding>& findings);
    Status passed_check(Check check, std::vector<Finding>& findings);
    void forget(Check check);
    // bytes: what to write; empty to read the range.
    std::shared_ptr<const HostAccess> access(int device, Stream stream, const ByteRange& range,
                                             std::vector<unsigned char> bytes);

    const std::vector<HostIllegalAccess>& illegal_accesses() const { return illegal_accesses_; }

private:
    // Written by the stream, read by checked().
    struct Outcome {
        std::vector<Finding> findings;
        bool is_illegal = false;
    };
    struct Pending {
        Event event{};
        std::shared_ptr<Outcome> outcome;
    };

    // The range as far as it may be touched; what lies behind is noted.
    ByteRange reachable(int device, Stream stream, const ByteRange& range, bool is_write);

    HostAddressSpace& memory_;
    HostStreams& streams_;
    HostCalls& calls_;
    HostSlots<Pending> pending_;
    std::vector<HostIllegalAccess> illegal_accesses_;
};

}  // namespace gma
