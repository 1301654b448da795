// The stress that tests/gpu runs on a card, here on the host driver, so that it is tried
// everywhere.
#include "stress.h"

#include <doctest.h>

#include <memory>

#include "driver/host_driver.h"
#include "pattern_word.h"

namespace gma::stress {
namespace {

// Streams stay a hundred operations behind the host, now this one and now that.
class HostCard final : public Card {
public:
    explicit HostCard(HostDriver& driver) : driver_(driver) {}

    Stream stream(int index) override {
        return reinterpret_cast<Stream>(std::uintptr_t{0x1000} *
                                        (static_cast<unsigned>(index) + 1));
    }
    void fill(Stream stream, Address address, Bytes bytes, std::uint32_t seed) override {
        driver_.launch(stream, [=] {
            auto* words = reinterpret_cast<std::uint32_t*>(address);
            for (Bytes at = 0; at < bytes / 4; ++at) { words[at] = word_of(seed, at); }
        });
    }
    void check(Stream stream, Address address, Bytes bytes, std::uint32_t seed) override {
        driver_.launch(stream, [=, this] {
            const auto* words = reinterpret_cast<const std::uint32_t*>(address);
            for (Bytes at = 0; at < bytes / 4; ++at) {
                mismatches_ += words[at] == word_of(seed, at) ? 0U : 1U;
            }
        });
    }
    void wait_for(Stream waiter, Stream other) override {
        const Event event = *driver_.record(0, other);
        REQUIRE(driver_.wait(waiter, event).ok());
        driver_.recycle(event);
    }
    void spin(Stream, int) override {}
    void progress() override {
        const Stream next = stream(static_cast<int>(turn_ / kTurnOperations % kStreamCount));
        if (driver_.queued_operations(next) > kBacklog) { driver_.advance(next, 6); }
        ++turn_;
    }
    std::uint64_t take_mismatches() override {
        driver_.drain_all();
        return std::exchange(mismatches_, 0);
    }

private:
    static constexpr std::uint64_t kTurnOperations = 20;
    static constexpr std::size_t kBacklog = 100;

    HostDriver& driver_;
    std::uint64_t mismatches_ = 0;
    std::uint64_t turn_ = 0;
};

}  // namespace

TEST_CASE("stress: every block keeps its pattern on the host driver") {
    HostDriver driver({.capacity_bytes = 64_MiB, .page_bytes = 64_KiB});
    Options options;
    SUBCASE("pages move") {}
    SUBCASE("memory is lent") { options.cross_stream = "lend"; }
    SUBCASE("isolation stream") { options.isolation = "stream"; }
    SUBCASE("isolation packed") { options.isolation = "packed"; }
    SUBCASE("isolation tensor") { options.isolation = "tensor"; }
    SUBCASE("isolation strict") { options.isolation = "strict"; }
    const bool is_isolated = options.isolation != "off";
    auto allocator = Allocator::create(driver, options);
    REQUIRE(allocator);
    const std::uint64_t count = is_isolated ? 2'000 : 6'000;
    const Setup setup{.operation_count = count, .limit_bytes = 32_MiB, .largest_bytes = 2_MiB};
    REQUIRE((*allocator)->set_limit(0, setup.limit_bytes).ok());
    HostCard card(driver);
    const Outcome outcome = Stress(**allocator, card, setup).run();
    CHECK(outcome.detected_on_purpose == 1024);
    CHECK(outcome.mismatches == 0);
    CHECK(outcome.operations == setup.operation_count);
    CHECK(outcome.foreign_uses > 100);
    if (!is_isolated) { CHECK(outcome.statistics.moved_chunks > 100); }
    CHECK((*allocator)->isolation_report(0).violation_count == 0);
    CHECK(driver.illegal_accesses().empty());
    CHECK(outcome.reserved_at_end == 0);
}

}  // namespace gma::stress
