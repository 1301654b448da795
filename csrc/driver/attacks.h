// Accesses made on purpose where none should be made, for verify-isolation: by kernels of
// csrc/kernels/attack.cu on a card, and the same on the CPU for the driver there. An access that
// cannot be made is an answer, not the end of the process; on a card it is the end of the context.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "driver/driver.h"
#include "driver/host_driver.h"

namespace gma {

enum class AttackKind : std::uint8_t {
    Poke,     // writes `bytes` bytes at address + index
    Peek,     // reads them
    Scatter,  // writes element `index` of 32-bit elements at the address, as an index too far would
    Gather,   // reads it
};

struct Attack {
    AttackKind kind = AttackKind::Peek;
    Address address = 0;
    std::int64_t index = 0;
    Bytes bytes = 4;            // of poke and peek, at most kMostAttackBytes
    std::uint32_t value = 0;    // of poke its lowest byte
    std::uint64_t spin_ns = 0;  // on a card; on the CPU a stream is as late as it is let
};
inline constexpr Bytes kMostAttackBytes = 64_KiB;

enum class AttackEnd : std::uint8_t { Running, Done, Fault };

// One that was launched.
class AttackRun {
public:
    virtual ~AttackRun() = default;
    // With `wait` never Running.
    virtual Result<AttackEnd> end(bool wait) = 0;
    // What peek or gather has read, once it is done.
    virtual std::vector<unsigned char> data() const = 0;
};

class Attacker {
public:
    virtual ~Attacker() = default;
    virtual Result<std::unique_ptr<AttackRun>> launch(int device, Stream stream,
                                                      const Attack& attack) = 0;
};

// Through libcuda.so.1, whoever else uses it in this process.
Result<std::unique_ptr<Attacker>> make_cuda_attacker();
// The driver must outlive it and what it launched.
std::unique_ptr<Attacker> make_host_attacker(HostDriver& driver);

// The first byte of the access, and how many bytes it has.
inline ByteRange attacked_range(const Attack& attack) {
    const bool is_element = attack.kind == AttackKind::Scatter || attack.kind == AttackKind::Gather;
    const std::uint64_t unit = is_element ? sizeof(std::uint32_t) : 1;
    const Address begin = attack.address + static_cast<std::uint64_t>(attack.index) * unit;
    return {begin, begin + (is_element ? unit : attack.bytes)};
}
inline bool is_write(AttackKind kind) {
    return kind == AttackKind::Poke || kind == AttackKind::Scatter;
}
// What every attacker refuses.
Status check_attack(const Attack& attack);

}  // namespace gma
