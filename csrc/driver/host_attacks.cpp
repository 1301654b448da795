// Attacks on the driver on the CPU.
#include <cstring>
#include <utility>

#include "driver/attacks.h"

namespace gma {
namespace {

std::vector<unsigned char> bytes_to_write(const Attack& attack) {
    if (attack.kind == AttackKind::Poke) {
        return std::vector<unsigned char>(attack.bytes, static_cast<unsigned char>(attack.value));
    }
    std::vector<unsigned char> bytes(sizeof attack.value);
    std::memcpy(bytes.data(), &attack.value, bytes.size());
    return bytes;
}

class HostAttackRun final : public AttackRun {
public:
    HostAttackRun(HostDriver& driver, Event event, std::shared_ptr<const HostAccess> access)
        : driver_(driver), event_(event), access_(std::move(access)) {}
    ~HostAttackRun() override { driver_.recycle(event_); }
    HostAttackRun(const HostAttackRun&) = delete;
    HostAttackRun& operator=(const HostAttackRun&) = delete;

    Result<AttackEnd> end(bool wait) override {
        const Status waited = wait ? driver_.synchronize(event_) : Status();
        Result<bool> passed = waited.ok() ? driver_.passed(event_) : Result<bool>(waited);
        if (!passed) { return passed.status(); }
        if (!*passed) { return AttackEnd::Running; }
        return access_->is_illegal ? AttackEnd::Fault : AttackEnd::Done;
    }

    std::vector<unsigned char> data() const override { return access_->bytes; }

private:
    HostDriver& driver_;
    Event event_;
    std::shared_ptr<const HostAccess> access_;
};

class HostAttacker final : public Attacker {
public:
    explicit HostAttacker(HostDriver& driver) : driver_(driver) {}

    Result<std::unique_ptr<AttackRun>> launch(int device, Stream stream,
                                              const Attack& attack) override {
        if (Status status = check_attack(attack); !status.ok()) { return status; }
        const ByteRange range = attacked_range(attack);
        std::shared_ptr<const HostAccess> access =
            is_write(attack.kind)
                ? driver_.launch_write(stream, range, bytes_to_write(attack), device)
                : driver_.launch_read(stream, range, device);
        Result<Event> event = driver_.record(device, stream);
        if (!event) { return event.status(); }
        return Result<std::unique_ptr<AttackRun>>(
            std::make_unique<HostAttackRun>(driver_, *event, std::move(access)));
    }

private:
    HostDriver& driver_;
};

}  // namespace

std::unique_ptr<Attacker> make_host_attacker(HostDriver& driver) {
    return std::make_unique<HostAttacker>(driver);
}

Status check_attack(const Attack& attack) {
    const ByteRange range = attacked_range(attack);
    if (range.begin < range.end && range.end - range.begin <= kMostAttackBytes) { return Status(); }
    return {Code::InvalidValue, "an attack is on 1 to " + std::to_string(kMostAttackBytes) +
                                    " bytes, and not past the end of all addresses"};
}

}  // namespace gma
