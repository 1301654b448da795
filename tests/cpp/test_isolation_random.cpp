// Random programs under each level of isolation, which do nothing wrong: three streams on each of
// two devices, recorded uses, private pools with and without captures, regions inside each other,
// streams that are destroyed and whose handles come back, limits, trims. Every block keeps its
// contents, nothing is found, and everything comes back.
#include <array>
#include <random>

#include "isolated_world.h"

namespace gma {
namespace {

constexpr Bytes kPage = 16_KiB;
constexpr Bytes kCard = 6_MiB;
constexpr int kStepCount = GMA_SANITIZED ? 800 : 1500;

class Program {
public:
    Program(const std::string& options, std::uint32_t seed)
        : world(options, two_cards()), random_(seed) {
        world.probe_bytes = 256;
    }

    void run() {
        for (int step = 0; step < kStepCount; ++step) {
            CAPTURE(step);
            one_step();
            if (step % 25 == 0) { world.check_audit(); }
            if (step % 150 == 149 && capturing_ == nullptr) { look_at_everything(); }
        }
        if (capturing_ != nullptr) { end_capture(); }
        while (region_count_ > 0) { end_region(); }
        for (int device = 0; device < 2; ++device) { require(set_limit(device, kCard)); }
        look_at_everything();
        check_no_alarm(world);
        world.check_nothing_left();
    }

    PatternWorld world;
    Bytes free_bytes_looked_at = 0;
    int done_count[12] = {};

private:
    static HostDriverConfig two_cards() {
        HostDriverConfig config = PatternWorld::small_card(kCard, kPage);
        config.device_count = 2;
        return config;
    }
    static void require(const Status& status) { REQUIRE_MESSAGE(status.ok(), status.message()); }
    std::size_t below(std::size_t bound) { return random_() % bound; }
    Stream stream_of(int device) {
        const std::size_t number = below(3);
        return number == 0 ? nullptr : stream_at(number + 4 * static_cast<std::size_t>(device));
    }
    std::map<Address, PatternWorld::Block>::iterator any_block() {
        const auto index = static_cast<std::ptrdiff_t>(below(world.blocks.size()));
        return std::next(world.blocks.begin(), index);
    }

    void one_step() {
        const auto device = static_cast<int>(below(capturing_ == nullptr ? 2 : 1));
        const std::size_t dice = below(100);
        CAPTURE(dice);
        if (dice < 40) { return allocate(device); }
        if (dice < 65) { return free_one(); }
        if (dice < 73) { return use_elsewhere(); }
        if (dice < 88) { return advance(device); }
        if (dice < 91) { return region(); }
        if (dice < 94) { return capture(); }
        if (dice < 96) { return replace_stream(device); }
        if (dice < 98) { return limit(device); }
        ++done_count[7];
        require(world.allocator->trim(device, Bytes{1} << below(24)).status());
    }

    void allocate(int device) {
        const Bytes most = Bytes{1} << (4 + below(15));
        const Address address = world.allocate(1 + below(most), stream_of(device), device);
        if (address == 0) {
            REQUIRE_MESSAGE(world.last.code() == Code::OutOfMemory, world.last.message());
            ++done_count[0];
            for (int i = 0; i < 8; ++i) { free_one(); }
        }
    }
    void free_one() {
        if (world.blocks.empty()) { return; }
        const auto [address, block] = *any_block();
        // On this driver a capture forbids what it forbids on all devices.
        if (capturing_ == nullptr || block.device == 0) { require(world.free(address)); }
    }
    // A kernel on another stream that comes after the block's own.
    void use_elsewhere() {
        if (world.blocks.empty()) { return; }
        const auto [address, block] = *any_block();
        const Stream other = stream_of(block.device);
        if (other == block.stream || capturing_ != nullptr) { return; }
        const Result<Event> event = world.driver.record(block.device, block.stream);
        if (!event) { return; }
        require(world.driver.wait(other, *event));
        world.driver.recycle(*event);
        require(world.record(address, other));
        ++done_count[1];
    }
    void advance(int device) {
        const Stream stream = stream_of(device);
        world.driver.advance(stream, below(30), device);
    }
    void region() {
        if (region_count_ > 0 && below(2) == 0) { return end_region(); }
        if (region_count_ == 3) { return; }
        all_threads_.push_back(below(2) == 0);
        require(
            world.allocator->begin_region(static_cast<Isolation>(below(5)), all_threads_.back()));
        ++region_count_;
        ++done_count[2];
    }
    void end_region() {
        require(world.allocator->end_region(all_threads_.back()));
        all_threads_.pop_back();
        --region_count_;
    }

    // A pool for stream 1 of device 0; half of them are a graph's.
    void capture() {
        if (capturing_ != nullptr || pool_begun_) { return end_capture(); }
        ++pool_.second;
        pool_begun_ = true;
        require(world.allocator->begin_pool(0, pool_,
                                            [](Stream stream) { return stream == stream_at(1); }));
        if (below(2) == 0) { return; }
        ++done_count[3];
        world.driver.drain(stream_at(1));
        capturing_ = stream_at(1);
        // What is mapped then stays without the pattern, so that free memory is not all of it.
        told_ = below(2) == 0 && isolation_of(world.allocator->options()) != Isolation::Packed;
        if (told_) { world.allocator->begin_capture(0); }
        world.driver.set_capturing(capturing_, true);
        if (told_) { return; }  // else the allocator learns of it with the first block
        for (int i = 0; i < 50 && world.allocate(100, capturing_) == 0; ++i) { free_one(); }
    }
    void end_capture() {
        if (capturing_ != nullptr) { world.driver.set_capturing(capturing_, false); }
        capturing_ = nullptr;
        if (std::exchange(told_, false)) { world.allocator->end_capture(0); }
        require(world.allocator->end_pool(0, pool_));
        require(world.allocator->release_pool(0, pool_));
        pool_begun_ = false;
    }

    // Its work goes on, or is done, with what that waits for on other streams, but its tensors
    // outlive it.
    void replace_stream(int device) {
        const Stream stream = stream_of(device);
        if (stream == nullptr || capturing_ != nullptr) { return; }
        // The slabs of other strategies go by the handle alone.
        if (isolation_of(world.allocator->options()) == Isolation::Off) { return; }
        if (below(2) == 0) {
            world.driver.drain_all();
        } else {
            std::vector<Address> its;
            for (const auto& [address, block] : world.blocks) {
                if (block.stream == stream) { its.push_back(address); }
            }
            for (const Address address : its) { require(world.free(address)); }
        }
        world.driver.destroy_stream(stream, device);
        world.driver.reuse_stream(stream, device);
        ++done_count[4];
    }
    Status set_limit(int device, Bytes bytes) { return world.allocator->set_limit(device, bytes); }
    void limit(int device) {
        require(set_limit(device, 1_MiB + below(kCard)));
        ++done_count[5];
    }

    void look_at_everything() {
        if (pool_begun_) { end_capture(); }
        settle(world);
        check_no_alarm(world);
        world.check_audit();
        for (int device = 0; device < 2; ++device) {
            if (world.allocator->options().isolation != "packed") { break; }
            free_bytes_looked_at += check_free_memory(world, device);
        }
        CHECK(world.mismatch_count == 0);
        ++done_count[6];
    }

    std::mt19937 random_;
    Stream capturing_ = nullptr;
    bool told_ = false;
    bool pool_begun_ = false;
    PoolId pool_{0, 100};
    int region_count_ = 0;
    std::vector<bool> all_threads_;
};

void run_programs(const char* options) {
    std::array<int, 8> done{};  // of each kind of step, over all seeds
    const bool is_off = isolation_of(options_from(options)) == Isolation::Off;
    for (const std::uint32_t seed : {1U, 2U, 3U}) {
        CAPTURE(seed);
        Program program(options, seed);
        program.run();
        for (std::size_t i = 0; i < done.size(); ++i) { done[i] += program.done_count[i]; }
        CHECK(program.world.check_count > 200);
        const bool is_packed = std::string(options) == "isolation:packed";
        CHECK((program.free_bytes_looked_at > 0) == is_packed);
    }
    for (std::size_t i = 0; i < done.size(); ++i) {
        CAPTURE(i);
        if (i != 4 || !is_off) { CHECK(done[i] > 0); }
    }
}

}  // namespace

TEST_CASE("random programs under stream") { run_programs("isolation:stream"); }
TEST_CASE("random programs under packed") { run_programs("isolation:packed"); }
TEST_CASE("random programs under tensor") { run_programs("isolation:tensor"); }
TEST_CASE("random programs under strict") { run_programs("isolation:strict"); }
TEST_CASE("random programs with a thread that maps") {
    SUBCASE("tensor") { run_programs("isolation:tensor,mapping_thread:on"); }
    SUBCASE("strict") { run_programs("isolation:strict,mapping_thread:on"); }
}
TEST_CASE("random programs with regions only") { run_programs("strategy:paged"); }
TEST_CASE("random programs with addresses used again at once") {
    run_programs("isolation:tensor,quarantine_gb:0,guard:lower,guard_alignment:16,poison:off");
}

}  // namespace gma
