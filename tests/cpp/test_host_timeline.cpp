// Streams and events of the host driver: the manual timeline and the clock.
#include <doctest.h>

#include <cstring>
#include <vector>

#include "driver/host_driver.h"
#include "driver_conformance.h"

namespace gma {
namespace {

const Stream kFirst = reinterpret_cast<Stream>(16);
const Stream kSecond = reinterpret_cast<Stream>(32);
const Stream kThird = reinterpret_cast<Stream>(48);
constexpr std::uint64_t kLagNs = 20'000'000;

std::uint64_t id_of(HostDriver& driver, int device, Stream stream) {
    return require_value(driver.stream_id(device, stream));
}

bool passed(HostDriver& driver, Event event) { return require_value(driver.passed(event)); }

HostDriverConfig on_a_clock() {
    return {.memory = HostMemory::AddressesOnly, .timeline = HostTimeline::Clock};
}

}  // namespace

TEST_CASE("manual timeline: a stream does what it is told to, in order") {
    HostDriver driver;
    std::vector<int> done;
    driver.launch(kFirst, [&] { done.push_back(1); });
    const Event event = require_value(driver.record(0, kFirst));
    driver.launch(kFirst, [&] { done.push_back(2); });
    CHECK(driver.queued_operations(kFirst) == 3);
    CHECK_FALSE(passed(driver, event));
    CHECK(driver.advance(kFirst) == 1);
    CHECK(done == std::vector<int>{1});
    CHECK_FALSE(passed(driver, event));
    CHECK(driver.advance(kFirst) == 1);
    CHECK(passed(driver, event));
    CHECK(driver.drain(kFirst) == 1);
    CHECK(done == std::vector<int>{1, 2});
    CHECK(driver.advance(kFirst) == 0);
}

TEST_CASE("manual timeline: a wait blocks its stream until the event has passed") {
    HostDriver driver;
    std::vector<int> done;
    driver.launch(kFirst, [&] { done.push_back(1); });
    const Event event = require_value(driver.record(0, kFirst));
    require_ok(driver.wait(kSecond, event));
    driver.recycle(event);  // a wait keeps what it waits for
    driver.launch(kSecond, [&] { done.push_back(2); });
    CHECK(driver.drain(kSecond) == 0);
    driver.drain(kFirst);
    CHECK(driver.drain(kSecond) == 2);
    CHECK(done == std::vector<int>{1, 2});
}

TEST_CASE("manual timeline: a host wait runs what it needs and no more") {
    HostDriver driver;
    std::vector<int> done;
    driver.launch(kFirst, [&] { done.push_back(1); });
    require_ok(driver.wait(kSecond, require_value(driver.record(0, kFirst))));
    driver.launch(kFirst, [&] { done.push_back(-1); });
    driver.launch(kSecond, [&] { done.push_back(2); });
    require_ok(driver.wait(kThird, require_value(driver.record(0, kSecond))));
    const Event last = require_value(driver.record(0, kThird));
    driver.launch(kThird, [&] { done.push_back(-3); });
    require_ok(driver.synchronize(last));
    CHECK(done == std::vector<int>{1, 2});
    CHECK(passed(driver, last));
    CHECK(driver.totals().count(Call::Synchronize) == 1);
    require_ok(driver.synchronize_device(0));
    CHECK(done == std::vector<int>{1, 2, -1, -3});
    CHECK(driver.totals().count(Call::Synchronize) == 2);
}

TEST_CASE("manual timeline: early reuse shows as wrong data") {
    HostDriver driver;
    const Address block = require_value(driver.malloc(0, 4096));
    auto* data = reinterpret_cast<unsigned char*>(block);
    int seen = 0;
    std::memset(data, 1, 4096);
    driver.launch(kFirst, [&] { seen = data[100]; });
    std::memset(data, 2, 4096);  // the next owner did not wait
    driver.drain_all();
    CHECK(seen == 2);
}

TEST_CASE("timelines: the default streams of two devices are two streams") {
    HostDriver driver({.device_count = 2});
    const Event first = require_value(driver.record(0, nullptr));
    const Event second = require_value(driver.record(1, nullptr));
    require_ok(driver.synchronize(second));
    CHECK_FALSE(passed(driver, first));
    CHECK(id_of(driver, 0, nullptr) != id_of(driver, 1, nullptr));
    const Stream legacy = reinterpret_cast<Stream>(1);  // another name of the default stream
    CHECK(id_of(driver, 0, nullptr) == id_of(driver, 0, legacy));
    require_ok(driver.synchronize_device(1));
    CHECK_FALSE(passed(driver, first));
    require_ok(driver.synchronize_device(0));
    CHECK(passed(driver, first));
}

TEST_CASE("timelines: a destroyed stream takes nothing, and its handle gets another id") {
    HostDriver driver;
    bool ran = false;
    const auto id = id_of(driver, 0, kFirst);
    driver.launch(kFirst, [&] { ran = true; });
    const Event event = require_value(driver.record(0, kFirst));
    driver.destroy_stream(kFirst);
    check_refused(driver.record(0, kFirst).status());
    check_refused(driver.wait(kFirst, event));
    check_refused(driver.stream_id(0, kFirst).status());
    driver.reuse_stream(kFirst);
    CHECK(id_of(driver, 0, kFirst) != id);
    require_value(driver.record(0, kFirst));
    driver.drain(kFirst);
    CHECK_FALSE(ran);
    CHECK_FALSE(passed(driver, event));
    require_ok(driver.synchronize_device(0));  // what was queued before still runs
    CHECK(ran);
    CHECK(passed(driver, event));
}

TEST_CASE("timelines: an event that was given back is unknown") {
    HostDriver driver;
    const Event event = require_value(driver.record(0, kFirst));
    CHECK(driver.outstanding_events() == 1);
    driver.recycle(event);
    CHECK(driver.outstanding_events() == 0);
    check_refused(driver.passed(event).status());
    check_refused(driver.wait(kFirst, event));
    check_refused(driver.synchronize(event));
    CHECK(require_value(driver.record(0, kFirst)) != event);
    check_refused(driver.passed(event).status());
}

TEST_CASE("timelines: what a capture forbids is refused and counted") {
    HostDriver driver;
    const Event event = require_value(driver.record(0, kSecond));
    driver.set_capturing(kFirst, true);
    CHECK(require_value(driver.capturing(0, kFirst)));
    CHECK_FALSE(require_value(driver.capturing(0, kSecond)));
    check_refused(driver.record(0, kFirst).status());
    check_refused(driver.wait(kFirst, event));
    check_refused(driver.stream_id(0, kFirst).status());
    check_refused(driver.passed(event).status());
    check_refused(driver.synchronize(event));
    check_refused(driver.synchronize_device(0));
    CHECK(driver.capture_violations() == 6);
    require_value(driver.stream_id(0, kSecond));
    require_value(driver.record(0, kSecond));
    require_value(driver.create(0, 2_MiB));
    driver.set_capturing(kFirst, false);
    CHECK_FALSE(passed(driver, event));
    CHECK(driver.capture_violations() == 6);
}

TEST_CASE("clock: an event passes one lag after it was recorded") {
    HostDriver driver(on_a_clock());
    driver.set_time_ns(1000);
    const Event event = require_value(driver.record(0, kFirst));
    driver.set_time_ns(1000 + kLagNs - 1);
    CHECK_FALSE(passed(driver, event));
    driver.set_time_ns(1000 + kLagNs);
    CHECK(passed(driver, event));
    driver.set_time_ns(500);  // ignored: what has passed stays so
    CHECK(passed(driver, event));
}

TEST_CASE("clock: after a wait nothing passes before what was waited for") {
    HostDriver driver(on_a_clock());
    const Event early = require_value(driver.record(0, kSecond));
    driver.set_time_ns(kLagNs / 2);
    const Event awaited = require_value(driver.record(0, kFirst));
    driver.set_time_ns(kLagNs / 2 + 10);
    require_ok(driver.wait(kSecond, awaited));
    const Event late = require_value(driver.record(0, kSecond));
    driver.set_time_ns(kLagNs);
    CHECK(passed(driver, early));
    driver.set_time_ns(kLagNs / 2 + kLagNs);
    CHECK(passed(driver, awaited));
    CHECK_FALSE(passed(driver, late));
    driver.set_time_ns(kLagNs / 2 + 10 + kLagNs);
    CHECK(passed(driver, late));
}

TEST_CASE("clock: of two waits for one stream the later decides") {
    HostDriver driver(on_a_clock());
    const Event early = require_value(driver.record(0, kFirst));
    driver.set_time_ns(10);
    const Event awaited = require_value(driver.record(0, kFirst));
    driver.set_time_ns(11);
    require_ok(driver.wait(kSecond, early));
    require_ok(driver.wait(kSecond, awaited));
    require_ok(driver.wait(kSecond, early));  // adds nothing
    const Event late = require_value(driver.record(0, kSecond));
    require_ok(driver.synchronize(late));
    CHECK(passed(driver, early));
    CHECK(passed(driver, awaited));
}

TEST_CASE("clock: a host wait lets the event pass, with what its stream had before") {
    HostDriver driver(on_a_clock());
    const Event first = require_value(driver.record(0, kFirst));
    const Event second = require_value(driver.record(0, kFirst));
    const Event third = require_value(driver.record(0, kFirst));
    const Event elsewhere = require_value(driver.record(0, kSecond));
    require_ok(driver.synchronize(second));
    CHECK(passed(driver, first));
    CHECK(passed(driver, second));
    CHECK_FALSE(passed(driver, third));
    CHECK_FALSE(passed(driver, elsewhere));
    CHECK(driver.totals().count(Call::Synchronize) == 1);
}

TEST_CASE("clock: a held stream passes nothing until it is let go") {
    HostDriver driver(on_a_clock());
    driver.hold(kFirst);
    const Event held = require_value(driver.record(0, kFirst));
    require_ok(driver.wait(kSecond, held));
    const Event behind = require_value(driver.record(0, kSecond));
    require_ok(driver.wait(kThird, behind));
    const Event last = require_value(driver.record(0, kThird));
    driver.set_time_ns(100 * kLagNs);
    CHECK_FALSE(passed(driver, held));
    CHECK_FALSE(passed(driver, behind));
    CHECK_FALSE(passed(driver, last));
    driver.let_go(kFirst);
    CHECK(passed(driver, held));
    CHECK(passed(driver, behind));
    CHECK(passed(driver, last));
    const Event after = require_value(driver.record(0, kFirst));
    CHECK_FALSE(passed(driver, after));
    driver.set_time_ns(101 * kLagNs);
    CHECK(passed(driver, after));
}

TEST_CASE("clock: a held stream is let go before the lag is over") {
    HostDriver driver(on_a_clock());
    driver.hold(kFirst);
    const Event held = require_value(driver.record(0, kFirst));
    driver.let_go(kFirst);
    CHECK(passed(driver, held));
}

TEST_CASE("clock: a host wait on a held stream ends the wait") {
    HostDriver driver(on_a_clock());
    driver.hold(kFirst);
    const Event held = require_value(driver.record(0, kFirst));
    require_ok(driver.wait(kSecond, held));
    const Event behind = require_value(driver.record(0, kSecond));
    require_ok(driver.synchronize(behind));
    CHECK(passed(driver, held));
    CHECK(passed(driver, behind));
}

}  // namespace gma
