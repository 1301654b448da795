// The whole device surface: what the core may ask of a GPU. Two implementations: cuda_driver (the
// only file that includes cuda.h) and host_driver (the same on the CPU, with real memory).
//
// Contract of the virtual-memory calls, as CUDA has it (measured, see docs/facts.md):
//   - the handle is the unit: it is mapped and unmapped whole, never in part;
//   - one handle may be mapped at several addresses at a time;
//   - an unmap does not wait for kernels that use the range: that is the caller's job;
//   - the cost is per handle, not per byte, up to about 128 MiB.
// Every call is safe from any thread. None throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace gma {

using Stream = void*;                  // a cudaStream_t; nullptr is the legacy default stream
enum class Handle : std::uint64_t {};  // physical memory (CUmemGenericAllocationHandle)
enum class Event : std::uintptr_t {};  // a recorded point in a stream's order
enum class Check : std::uintptr_t {};  // a look at contents that was asked for; never 0

// What can reach the memory of a handle. Private: no other process, since it has no exportable type
// and no network card may read it, and no other device.
enum class Reach : std::uint8_t { Shared, Private };

// The calls that are counted, in the order of the replay report's keys.
enum class Call : std::uint8_t {
    Create,
    Map,
    SetAccess,
    Unmap,
    Release,
    Malloc,
    Free,
    Event,
    Wait,
    Synchronize,
    Fill,
    Check,
};
inline constexpr int kCallCount = 12;

struct DeviceProperties {
    Bytes page_bytes = 0;   // the granule of create() and map(); 0: no virtual memory management
    Bytes total_bytes = 0;  // the card's memory
};

struct CardMemory {
    Bytes free_bytes = 0;
    Bytes total_bytes = 0;
};

struct ByteRange {
    Address begin = 0;
    Address end = 0;  // not below begin
};

struct CheckAndFill;

// A range that did not hold the pattern.
struct Finding {
    std::size_t range = 0;  // its index in the list that check() was given
    Address first_bad = 0;
    Bytes bad_bytes = 0;
    std::array<unsigned char, 4> found{};  // what stands at first_bad; zero from the range's end on
};

class Driver {
public:
    virtual ~Driver() = default;

    // Not so where a run is to be repeated call by call.
    virtual bool is_card() const { return true; }
    virtual int device_count() = 0;
    virtual Result<DeviceProperties> properties(int device) = 0;
    virtual Result<CardMemory> card_memory(int device) = 0;

    // Addresses and physical memory. `alignment` is a power of two, at least a page.
    virtual Result<Address> reserve(int device, Bytes bytes, Bytes alignment) = 0;
    virtual Status unreserve(Address address, Bytes bytes) = 0;
    virtual Result<Handle> create(int device, Bytes bytes, Reach reach) = 0;
    virtual Status map(Address address, Bytes bytes, Handle handle) = 0;
    // Shared: for all capable peers too. A private handle gets its own device and nothing else.
    virtual Status set_access(int device, Address address, Bytes bytes, Reach reach) = 0;
    virtual Status unmap(Address address, Bytes bytes) = 0;
    virtual Status release(int device, Handle handle, Bytes bytes) = 0;
    // For another process: a file descriptor that stands for the handle's memory and keeps it alive
    // until it is closed, and the handle that such a descriptor stands for, of the same size. The
    // caller closes the descriptor in both cases. NotSupported: this memory has none.
    virtual Result<int> export_handle(int device, Handle handle) = 0;
    virtual Result<Handle> import_handle(int device, int descriptor, Bytes bytes) = 0;

    Result<Handle> create(int device, Bytes bytes) { return create(device, bytes, Reach::Shared); }
    Status set_access(int device, Address address, Bytes bytes) {
        return set_access(device, address, bytes, Reach::Shared);
    }

    // Whole segments, for the strategies `split` and `direct`. free() may wait for the device.
    virtual Result<Address> malloc(int device, Bytes bytes) = 0;
    virtual Status free(int device, Address address) = 0;

    // Stream order. record() takes an event from a pool, recycle() gives it back.
    virtual Result<Event> record(int device, Stream stream) = 0;
    virtual Result<bool> passed(Event event) = 0;
    virtual Status wait(Stream stream, Event event) = 0;  // the stream waits, not the host
    virtual Status synchronize(Event event) = 0;          // the host waits
    virtual void recycle(Event event) noexcept = 0;

    // Contents, written and looked at when the stream gets there. The byte at address a is byte
    // a % 4 of the pattern, the lowest one first. Never for a stream that captures.
    virtual Status fill(int device, Stream stream, const std::vector<ByteRange>& ranges,
                        std::uint32_t pattern) = 0;
    virtual Result<Check> check(int device, Stream stream, const std::vector<ByteRange>& ranges,
                                std::uint32_t pattern) = 0;
    // A look at what lies in `range` before the block (range 0) and behind it (1), then a fill of
    // all of it. Of what was found at the end of 8 KiB `found` may be cut short. Only for
    // passed_check(): no event is recorded for it.
    virtual CheckAndFill check_and_fill(int device, Stream stream, const ByteRange& range,
                                        const ByteRange& block, std::uint32_t pattern);
    // True: done, and what was found is appended, in the order of the ranges. False: not yet, and
    // the host was not to wait. After anything but false, a failure too, the check is gone.
    virtual Result<bool> checked(Check check, bool wait, std::vector<Finding>& findings) = 0;
    // The caller knows that the stream has got there.
    virtual Status passed_check(Check check, std::vector<Finding>& findings) {
        return checked(check, true, findings).status();
    }
    // What fill() and check() leave out on this device, as a sentence; empty if nothing.
    virtual std::string content_shortcoming(int device) = 0;

    // A number that no other stream of the process ever has, although handles are used again.
    // Never ask a capturing stream: CUDA refuses to answer (900), and the capture is lost.
    virtual Result<std::uint64_t> stream_id(int device, Stream stream) = 0;
    virtual Result<bool> capturing(int device, Stream stream) = 0;
    // The host waits for everything on the device; only for a stream that was destroyed unfenced.
    virtual Status synchronize_device(int device) = 0;
};

struct CheckAndFill {
    Result<Check> check;
    Status filled;
};

inline CheckAndFill Driver::check_and_fill(int device, Stream stream, const ByteRange& range,
                                           const ByteRange& block, std::uint32_t pattern) {
    Result<Check> asked =
        check(device, stream, {{range.begin, block.begin}, {block.end, range.end}}, pattern);
    return {std::move(asked), fill(device, stream, {range}, pattern)};
}

}  // namespace gma
