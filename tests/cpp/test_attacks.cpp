// Accesses made on purpose: on the driver on the CPU, and on the stand-in machine through CUDA.
#include <doctest.h>

#include <cstring>
#include <vector>

#include "driver/attacks.h"
#include "kernels/images.h"
#include "stand_in.h"

namespace gma {

// The stand-in never looks into it.
KernelImage attack_image() {
    static constexpr unsigned char kImage[] = {1};
    return {kImage, sizeof kImage};
}

namespace {

const Stream kStream = reinterpret_cast<Stream>(16);

// One page, with nothing mapped behind it.
Address mapped_page(Driver& driver) {
    const Address base = require_value(driver.reserve(0, 4_MiB, 2_MiB));
    const Handle handle = require_value(driver.create(0, 2_MiB, Reach::Private));
    require_ok(driver.map(base, 2_MiB, handle));
    require_ok(driver.set_access(0, base, 2_MiB, Reach::Private));
    return base;
}

std::unique_ptr<AttackRun> launched(Attacker& attacker, Stream stream, const Attack& attack) {
    Result<std::unique_ptr<AttackRun>> run = attacker.launch(0, stream, attack);
    REQUIRE_MESSAGE(run, run.status().message());
    return std::move(*run);
}

std::vector<unsigned char> read_by(Attacker& attacker, Stream stream, const Attack& attack) {
    const auto run = launched(attacker, stream, attack);
    CHECK(require_value(run->end(true)) == AttackEnd::Done);
    return run->data();
}

// What holds for both: writes and reads where there is memory, by bytes and by elements.
void check_hits(Attacker& attacker, Stream stream, Address base) {
    using Data = std::vector<unsigned char>;
    for (const Attack& attack : {Attack{AttackKind::Poke, base, 8, 3, 0x41, 0},
                                 Attack{AttackKind::Poke, base + 8, -7, 1, 0x42, 0},
                                 Attack{AttackKind::Scatter, base, 3, 4, 0x44434645, 0}}) {
        CHECK(require_value(launched(attacker, stream, attack)->end(true)) == AttackEnd::Done);
    }
    CHECK(read_by(attacker, stream, {AttackKind::Peek, base, 7, 5, 0, 0}) ==
          Data{0, 0x41, 0x41, 0x41, 0});
    CHECK(read_by(attacker, stream, {AttackKind::Peek, base, 1, 1, 0, 0}) == Data{0x42});
    CHECK(read_by(attacker, stream, {AttackKind::Gather, base + 16, -1, 4, 0, 0}) ==
          Data{0x45, 0x46, 0x43, 0x44});
    CHECK(attacker.launch(0, stream, {AttackKind::Peek, base, 0, 0, 0, 0}).status().code() ==
          Code::InvalidValue);
    CHECK(attacker.launch(0, stream, {AttackKind::Poke, base, 0, 65'537, 0, 0}).status().code() ==
          Code::InvalidValue);
}

}  // namespace

TEST_CASE("attacks: on the CPU: memory is hit where it is") {
    HostDriver driver;
    const auto attacker = make_host_attacker(driver);
    check_hits(*attacker, kStream, mapped_page(driver));
    CHECK(driver.illegal_accesses().empty());
    CHECK(driver.outstanding_events() == 0);
}

TEST_CASE("attacks: on the CPU: a fault is an answer and nothing is touched") {
    HostDriver driver;
    const auto attacker = make_host_attacker(driver);
    const Address base = mapped_page(driver);
    for (const AttackKind kind : {AttackKind::Poke, AttackKind::Peek}) {
        const auto across = launched(*attacker, kStream, {kind, base, 2_MiB - 2, 4, 0x41, 0});
        CHECK(require_value(across->end(true)) == AttackEnd::Fault);
    }
    for (const AttackKind kind : {AttackKind::Scatter, AttackKind::Gather}) {
        const auto far = launched(*attacker, kStream, {kind, base, 1 << 19, 4, 0x41, 0});
        CHECK(require_value(far->end(true)) == AttackEnd::Fault);
        const auto before = launched(*attacker, kStream, {kind, base, -1, 4, 0x41, 0});
        CHECK(require_value(before->end(true)) == AttackEnd::Fault);
    }
    CHECK(*reinterpret_cast<unsigned char*>(base + 2_MiB - 2) == 0);
    CHECK(driver.illegal_accesses().size() == 6);
    check_hits(*attacker, kStream, base);  // all else goes on
}

TEST_CASE("attacks: on the CPU: an access happens when its stream gets there") {
    HostDriver driver;
    const auto attacker = make_host_attacker(driver);
    const Address base = mapped_page(driver);
    const auto late = launched(*attacker, kStream, {AttackKind::Poke, base, 0, 4, 0x41, 0});
    CHECK(require_value(late->end(false)) == AttackEnd::Running);
    CHECK(*reinterpret_cast<unsigned char*>(base) == 0);
    driver.drain(kStream);
    CHECK(require_value(late->end(false)) == AttackEnd::Done);
    CHECK(*reinterpret_cast<unsigned char*>(base) == 0x41);
    const auto stale = launched(*attacker, kStream, {AttackKind::Poke, base, 0, 4, 0x42, 0});
    require_ok(driver.unmap(base, 2_MiB));
    CHECK(require_value(stale->end(true)) == AttackEnd::Fault);
}

TEST_CASE("attacks: stand-in: through CUDA memory is hit where it is") {
    if (was_run_on_stand_in()) { return; }
    Card card;
    const auto attacker = std::move(*make_cuda_attacker());
    check_hits(*attacker, card.stream(3), mapped_page(card.driver()));
}

TEST_CASE("attacks: stand-in: through CUDA a fault is an answer and ends the context") {
    if (was_run_on_stand_in()) { return; }
    Card card;
    const auto attacker = std::move(*make_cuda_attacker());
    const Address base = mapped_page(card.driver());
    const Stream slow = card.stream(3);
    const auto number = reinterpret_cast<std::uintptr_t>(slow);
    rig_function<void(std::uintptr_t, int)>("rig_set_slow")(number, 1);
    const auto late = launched(*attacker, slow, {AttackKind::Poke, base, 0, 4, 0x41, 0});
    const auto far = launched(*attacker, slow, {AttackKind::Poke, base, 2_MiB, 4, 0x41, 0});
    CHECK(require_value(late->end(false)) == AttackEnd::Running);
    rig_function<void(std::uintptr_t)>("rig_finish")(number);
    CHECK(*reinterpret_cast<unsigned char*>(base) == 0x41);
    CHECK(require_value(far->end(true)) == AttackEnd::Fault);
    CHECK(card.driver().record(0, nullptr).status().driver_code() == 700);
}

TEST_CASE("attacks: stand-in: a fault that comes before the launch returns is one too") {
    if (was_run_on_stand_in()) { return; }
    Card card;
    const auto attacker = std::move(*make_cuda_attacker());
    const Address base = mapped_page(card.driver());
    const auto far = launched(*attacker, nullptr, {AttackKind::Gather, base, 1 << 19, 4, 0, 0});
    CHECK(require_value(far->end(false)) == AttackEnd::Fault);
}

TEST_CASE("attacks: stand-in: without kernels there are none") {
    if (was_run_on_stand_in("RIG_FAIL=cuModuleLoadData=209")) { return; }
    Card card;
    const auto attacker = std::move(*make_cuda_attacker());
    const Status status = attacker->launch(0, nullptr, {AttackKind::Peek, 0, 0, 4, 0, 0}).status();
    CHECK(status.code() == Code::NotSupported);
    CHECK(status.message().find("CUDA kernels cannot be used") != std::string::npos);
}

}  // namespace gma
