// Reports by users that need the API, not a trace: emptying the cache, rounds of the same request,
// giving back what a checkpoint's loading left, one stream's memory serving another.
#include <doctest.h>

#include <memory>
#include <vector>

#include "core/allocator.h"
#include "driver/host_driver.h"

using namespace gma;

namespace {

struct Card {
    explicit Card(Bytes bytes, HostMemory memory = HostMemory::AddressesOnly)
        : driver([&] {
              HostDriverConfig config;
              config.memory = memory;
              config.timeline = HostTimeline::Manual;
              config.capacity_bytes = bytes;
              return config;
          }()) {
        auto made = Allocator::create(driver, Options{});
        REQUIRE(made);
        allocator = std::move(*made);
    }
    Address allocate(Bytes bytes, Stream stream = nullptr) {
        auto address = allocator->allocate(0, bytes, stream);
        REQUIRE_MESSAGE(address, address.status().message());
        return *address;
    }
    Bytes reserved() {
        return static_cast<Bytes>(allocator->statistics(0).reserved_bytes[0].current);
    }
    std::uint64_t calls() {
        std::uint64_t sum = 0;
        for (const std::uint64_t count : driver.totals().counts) { sum += count; }
        return sum;
    }

    HostDriver driver;
    std::unique_ptr<Allocator> allocator;
};

Stream stream_number(std::uintptr_t number) { return reinterpret_cast<Stream>(number << 8); }

}  // namespace

TEST_CASE("few small survivors do not pin large buffers (pytorch PR#17120)") {
    Card card(16_GiB);
    std::vector<Address> blocks;
    for (int i = 0; i < 1000; ++i) { blocks.push_back(card.allocate(1_MiB + 512_KiB)); }
    std::size_t survivors = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (i % 13 == 0) {
            ++survivors;
        } else {
            REQUIRE(card.allocator->free(blocks[i]).ok());
        }
    }
    REQUIRE(card.allocator->trim(0));
    CHECK(card.reserved() <= survivors * 4_MiB);
    CHECK(card.allocator->audit().ok());
}

TEST_CASE("rounds of the same request make no driver calls (pytorch PR#95827)") {
    Card card(16_GiB);
    REQUIRE(card.allocator->free(card.allocate(40_MiB)).ok());
    const std::uint64_t before = card.calls();
    for (int round = 0; round < 100; ++round) {
        REQUIRE(card.allocator->free(card.allocate(40_MiB)).ok());
    }
    CHECK(card.calls() - before < 5);
}

TEST_CASE("what loading a checkpoint left goes back on trim (cosmos-rl PR#562)") {
    Card card(140_GiB);
    std::vector<Address> kept;
    std::vector<Address> loaded;
    Bytes kept_bytes = 0;
    for (Bytes i = 0; i < 200; ++i) {
        const Bytes bytes = (8 + i * 37 % 190) * 1_MiB;
        kept.push_back(card.allocate(bytes));
        kept_bytes += bytes;
        loaded.push_back(card.allocate(2 * bytes));
    }
    for (const Address block : loaded) { REQUIRE(card.allocator->free(block).ok()); }
    const Bytes before = card.reserved();
    Result<Bytes> given = card.allocator->trim(0);
    REQUIRE(given);
    CHECK(*given == before - card.reserved());
    // Each survivor pins at most the chunks at its two ends.
    CHECK(card.reserved() <= kept_bytes + kept.size() * 2 * 64_MiB);
    CHECK(card.reserved() < before - (before - kept_bytes) / 2);
}

// vllm#52950: buffers of 1 GiB on ever new streams; here a tenth of it, written
// and checked, the streams run late and out of order.
TEST_CASE("an idle stream's memory serves another, after the work that used it") {
    constexpr Bytes kBytes = 100_MiB;
    Card card(2_GiB, HostMemory::Real);
    int wrong = 0;
    for (std::uintptr_t call = 0; call < 20; ++call) {
        std::vector<Address> blocks;
        for (std::uintptr_t half = 0; half < 2; ++half) {
            const Stream stream = stream_number(1 + (2 * call + half) % 32);
            const Address block = card.allocate(kBytes, stream);
            const std::uint64_t mark = 1 + 2 * call + half;
            auto words = [block](Bytes at) {
                return reinterpret_cast<volatile std::uint64_t*>(block + at);
            };
            card.driver.launch(stream, [words, mark] {
                for (Bytes at = 0; at < kBytes; at += 1_MiB) { *words(at) = mark; }
            });
            card.driver.launch(stream, [words, mark, &wrong] {
                for (Bytes at = 0; at < kBytes; at += 1_MiB) { wrong += *words(at) != mark; }
            });
            blocks.push_back(block);
        }
        for (const Address block : blocks) { REQUIRE(card.allocator->free(block).ok()); }
        card.driver.advance(stream_number(1 + (2 * call + 1) % 32));  // one write, half of the work
    }
    CHECK(card.reserved() <= 2 * kBytes + kBytes / 10);
    CHECK(card.driver.totals().count(Call::Synchronize) == 0);
    card.driver.drain_all();
    CHECK(wrong == 0);
    CHECK(card.allocator->audit().ok());
}
