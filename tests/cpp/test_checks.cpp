// The checks themselves: each kind fires, says what must hold and what it found.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>

#include "base/check.h"
#include "core/address_map.h"
#include "core/paged_strategy.h"
#include "core/split_strategy.h"
#include "pattern_world.h"

namespace gma {
namespace {

struct Death {
    int signal = 0;  // 0: it lived
    std::string text;
};

// Runs `action` in a child of this process and returns how that ended.
Death death_of(const std::function<void()>& action) {
    std::array<int, 2> pipe_ends{};
    REQUIRE(::pipe(pipe_ends.data()) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        std::signal(SIGABRT, SIG_DFL);  // not the test framework's: it would report a failure
        ::dup2(pipe_ends[1], STDERR_FILENO);
        action();
        ::_exit(0);
    }
    ::close(pipe_ends[1]);
    Death death;
    std::array<char, 1024> piece{};
    for (ssize_t count = 0; (count = ::read(pipe_ends[0], piece.data(), piece.size())) > 0;) {
        death.text.append(piece.data(), static_cast<std::size_t>(count));
    }
    ::close(pipe_ends[0]);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status)) { death.signal = WTERMSIG(status); }
    return death;
}

bool contains(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

// A driver that gives the same segment twice: then the books cannot be right.
class LyingDriver final : public Driver {
public:
    int device_count() override { return 1; }
    Result<DeviceProperties> properties(int device) override { return host_.properties(device); }
    Result<CardMemory> card_memory(int device) override { return host_.card_memory(device); }
    Result<Address> reserve(int device, Bytes bytes, Bytes alignment) override {
        return host_.reserve(device, bytes, alignment);
    }
    Status unreserve(Address address, Bytes bytes) override {
        return host_.unreserve(address, bytes);
    }
    Result<Handle> create(int device, Bytes bytes, Reach reach) override {
        return host_.create(device, bytes, reach);
    }
    Status map(Address address, Bytes bytes, Handle handle) override {
        return host_.map(address, bytes, handle);
    }
    Status set_access(int device, Address address, Bytes bytes, Reach reach) override {
        return host_.set_access(device, address, bytes, reach);
    }
    Status unmap(Address address, Bytes bytes) override { return host_.unmap(address, bytes); }
    Status release(int device, Handle handle, Bytes bytes) override {
        return host_.release(device, handle, bytes);
    }
    Result<int> export_handle(int device, Handle handle) override {
        return host_.export_handle(device, handle);
    }
    Result<Handle> import_handle(int device, int descriptor, Bytes bytes) override {
        return host_.import_handle(device, descriptor, bytes);
    }
    Result<Address> malloc(int device, Bytes bytes) override {
        if (lies && given_ != 0) { return given_; }
        Result<Address> address = host_.malloc(device, bytes);
        if (address) { given_ = *address; }
        return address;
    }
    Status free(int device, Address address) override { return host_.free(device, address); }
    Result<Event> record(int device, Stream stream) override {
        return host_.record(device, stream);
    }
    Result<bool> passed(Event event) override { return host_.passed(event); }
    Status wait(Stream stream, Event event) override { return host_.wait(stream, event); }
    Status synchronize(Event event) override { return host_.synchronize(event); }
    void recycle(Event event) noexcept override { host_.recycle(event); }
    Status fill(int device, Stream stream, const std::vector<ByteRange>& ranges,
                std::uint32_t pattern) override {
        return host_.fill(device, stream, ranges, pattern);
    }
    Result<Check> check(int device, Stream stream, const std::vector<ByteRange>& ranges,
                        std::uint32_t pattern) override {
        return host_.check(device, stream, ranges, pattern);
    }
    Result<bool> checked(Check check, bool wait, std::vector<Finding>& findings) override {
        return host_.checked(check, wait, findings);
    }
    std::string content_shortcoming(int device) override {
        return host_.content_shortcoming(device);
    }
    Result<std::uint64_t> stream_id(int device, Stream stream) override {
        return host_.stream_id(device, stream);
    }
    Result<bool> capturing(int device, Stream stream) override {
        return host_.capturing(device, stream);
    }
    Status synchronize_device(int device) override { return host_.synchronize_device(device); }

    bool lies = false;

private:
    HostDriver host_;
    Address given_ = 0;
};

// Two allocations, and the driver lies about the second. What the audit then says.
std::string audit_of_lies(bool lies) {
    LyingDriver driver;
    Result<std::unique_ptr<Allocator>> made =
        Allocator::create(driver, options_from("strategy:split"));
    REQUIRE(static_cast<bool>(made));
    REQUIRE(static_cast<bool>((*made)->allocate(0, 30_MiB, nullptr)));
    driver.lies = lies;
    static_cast<void>((*made)->allocate(0, 30_MiB, nullptr));
    return (*made)->audit().message();
}

// A paged strategy whose blocks a test can spoil.
struct Spoiled {
    Spoiled() {
        strategy.set_limit(64_MiB);
        for (Block*& block : blocks) {
            Request request;
            request.bytes = 1_MiB;
            Result<Block*> obtained = strategy.obtain(request, Effort::Limit);
            REQUIRE(static_cast<bool>(obtained));
            REQUIRE(*obtained != nullptr);
            block = *obtained;
        }
        REQUIRE(strategy.audit().ok());
    }
    std::string text() const { return strategy.audit().message(); }

    HostDriver driver{PatternWorld::small_card(64_MiB)};
    AddressMap addresses;
    Options options;
    Listeners listeners;
    PagedStrategy strategy{
        driver,    0,        {PatternWorld::kPage, 64_MiB}, options, Isolation::Off, {},
        addresses, listeners};
    std::array<Block*, 3> blocks{};
};

}  // namespace

#ifndef NDEBUG
TEST_CASE("an assertion ends a debug build with both sides") {
    const Bytes large = 9;
    const Death equal = death_of([=] { GMA_ASSERT_EQ(large, 8_B, "nine is eight"); });
    CHECK(equal.signal == SIGABRT);
    CHECK(contains(equal.text, "large == 8_B must hold (nine is eight)"));
    CHECK(contains(equal.text, "left is 9 and right is 8"));
    CHECK(death_of([=] { GMA_ASSERT_LE(large, 8_B, "at most eight"); }).signal == SIGABRT);
    CHECK(death_of([=] { GMA_ASSERT_LT(large, 9_B, "below nine"); }).signal == SIGABRT);
    CHECK(death_of([=] {
              GMA_ASSERT_EQ(large, 9_B, "it holds");
              GMA_ASSERT_LE(large, 9_B, "it holds");
              GMA_ASSERT_LT(large, 10_B, "it holds");
          }).signal == 0);
}

TEST_CASE("the core's own assertions fire") {
    const Death death = death_of([] {
        Spoiled spoiled;
        Block* block = spoiled.blocks[0];
        block->arena->carve(block, block->address, block->bytes + 512);
    });
    CHECK(death.signal == SIGABRT);
    CHECK(contains(death.text, "a carved block lies inside its tile"));
}
#endif

TEST_CASE("the audit names what does not hold") {
    SUBCASE("tiling") {
        Spoiled spoiled;
        spoiled.blocks[1]->bytes -= 512;
        CHECK(contains(spoiled.text(), "blocks tile their arena"));
        spoiled.blocks[1]->bytes += 512;
    }
    SUBCASE("links") {
        Spoiled spoiled;
        Block* previous = std::exchange(spoiled.blocks[1]->previous, nullptr);
        CHECK(contains(spoiled.text(), "links agree both ways"));
        spoiled.blocks[1]->previous = previous;
    }
    SUBCASE("indexed free blocks") {
        Spoiled spoiled;
        spoiled.blocks[1]->kind = TileKind::Free;
        CHECK(contains(spoiled.text(), "every free block is indexed"));
        spoiled.blocks[1]->kind = TileKind::Used;
    }
    SUBCASE("free neighbours") {
        Spoiled spoiled;
        spoiled.blocks[0]->kind = spoiled.blocks[1]->kind = TileKind::Free;
        CHECK(contains(spoiled.text(), "no two neighbours are both Free"));
        spoiled.blocks[0]->kind = spoiled.blocks[1]->kind = TileKind::Used;
    }
    SUBCASE("mapped pages") {
        Spoiled spoiled;
        spoiled.blocks[1]->kind = TileKind::Stale;
        CHECK(contains(spoiled.text(), "a hole has no chunk"));
        spoiled.blocks[1]->kind = TileKind::Used;
    }
    SUBCASE("chunks") {
        Spoiled spoiled;
        Chunk* chunk = spoiled.blocks[1]->arena->chunk_at(spoiled.blocks[1]->address);
        const Address address = std::exchange(chunk->address, Address{0});
        CHECK(contains(spoiled.text(), "a page's chunk is mapped there"));
        chunk->address = address;
        const Bytes bytes = std::exchange(chunk->bytes, chunk->bytes + 4_KiB);
        CHECK(contains(spoiled.text(), "mapped + spare == reserved"));
        chunk->bytes = bytes;
        CHECK(spoiled.text().empty());
    }
}

TEST_CASE("the audit of segments sees a segment that was given twice") {
#if GMA_AUDIT_EVERY_CALL
    // The call itself notices: before it returns, or before the next one does anything.
    const Death death = death_of([] { static_cast<void>(audit_of_lies(true)); });
    CHECK(death.signal == SIGABRT);
    CHECK(contains(death.text, "after a call: audit:"));
    CHECK(contains(death.text, "must hold, but left is"));
#else
    CHECK(contains(audit_of_lies(true), "sum(segment.held_bytes) == reserved"));
#endif
    CHECK(audit_of_lies(false).empty());
}

}  // namespace gma
