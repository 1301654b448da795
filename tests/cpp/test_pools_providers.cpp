// Pools whose memory comes from another allocator.
#include <algorithm>
#include <map>

#include "pools_world.h"

namespace gma {
namespace {

// Gives out memory of the driver's, as torch's custom allocators do with cudaMalloc.
class Provider final : public SegmentProvider {
public:
    explicit Provider(Driver& driver) : driver_(driver) {}
    ~Provider() override { ++deaths; }
    Result<Address> obtain(Bytes bytes) override {
        ++obtain_count;
        if (refuses_with) { return Status(*refuses_with, "refused"); }
        if (room_bytes < bytes) { return Address{0}; }
        Result<Address> address = driver_.malloc(0, bytes);
        if (!address) { return address; }
        room_bytes -= bytes;
        held.emplace(*address, bytes);
        return address;
    }
    void give_back(Address address) noexcept override {
        const auto it = held.find(address);
        wrong_count += it == held.end();
        if (it == held.end()) { return; }
        room_bytes += it->second;
        held.erase(it);
        static_cast<void>(driver_.free(0, address));
    }
    bool owns(Address address) const {
        return std::any_of(held.begin(), held.end(), [address](const auto& entry) {
            return address >= entry.first && address < entry.first + entry.second;
        });
    }

    inline static int deaths = 0;
    Bytes room_bytes = 1_GiB;
    std::map<Address, Bytes> held;
    std::optional<Code> refuses_with;
    int obtain_count = 0;
    int wrong_count = 0;

private:
    Driver& driver_;
};

struct ProviderWorld : PoolsWorld {
    using PoolsWorld::PoolsWorld;
    // The test keeps no part in the provider: the pool does.
    Provider* retain_provided(PoolId pool = kPool) {
        auto provider = std::make_shared<Provider>(driver);
        Provider* raw = provider.get();
        retain(pool, std::move(provider));
        return raw;
    }
};

}  // namespace

TEST_CASE("a provider's segments are cut as PyTorch cuts them, and counted") {
    for (const char* options : {"strategy:paged", "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        ProviderWorld world(256_MiB, options);
        Provider* provider = world.retain_provided();
        const Address small = world.allocate_in(kPool, 700);
        const Address also_small = world.allocate_in(kPool, 1_MiB);
        const Address middle = world.allocate_in(kPool, 3_MiB);
        const Address large = world.allocate_in(kPool, 18_MiB + 1);
        CHECK(provider->held.size() == 3);
        CHECK(provider->held.at(small) == 2_MiB);
        CHECK(also_small == small + 1_KiB);
        CHECK(provider->held.at(middle) == 20_MiB);
        CHECK(provider->held.at(large) == 20_MiB);
        CHECK(world.reserved_bytes() == 42_MiB);
        CHECK(world.held().current == 42_MiB);
        CHECK(world.statistics().segment[0].current == 3);
        CHECK(world.statistics().allocation[0].current == 4);
        const Address outside = world.allocate(1_MiB, kOne);
        CHECK_FALSE(provider->owns(outside));
        const Result<BaseAllocation> base = world.allocator->base_allocation(also_small);
        REQUIRE(static_cast<bool>(base));
        CHECK(base->address == small);
        CHECK(base->bytes == 2_MiB);
        const auto found = world.allocator->describe(middle);
        REQUIRE(found.has_value());
        CHECK(found->pool_second == kPool.second);
        Bytes shown = 0;
        for (const SegmentInfo& segment : world.allocator->snapshot(0)) {
            if (segment.pool == kPool) { shown += segment.bytes; }
        }
        CHECK(shown == 42_MiB);
        // Freed, kept for the pool, and given back when it is asked for.
        const int deaths = Provider::deaths;
        REQUIRE(world.free(middle).ok());
        CHECK(world.allocate_in(kPool, 5_MiB) == middle);
        REQUIRE(world.free(middle).ok());
        world.trim();
        CHECK(provider->held.size() == 3);
        CHECK(world.trim_pool() == 20_MiB);
        CHECK(provider->held.size() == 2);
        REQUIRE(world.free(large).ok());
        world.driver.drain_all();
        world.release();
        world.trim_pool();  // what is idle goes, live tensors keep the rest and the provider
        CHECK(provider->held.size() == 1);
        CHECK(provider->wrong_count == 0);
        CHECK(Provider::deaths == deaths);
        CHECK(world.held().current == 2_MiB);
        REQUIRE(world.free(small).ok());
        REQUIRE(world.free(also_small).ok());
        world.driver.drain_all();
        world.trim();
        CHECK(Provider::deaths == deaths + 1);
        CHECK(world.held().current == 0);
        world.check_nothing_left();
    }
}

TEST_CASE("a provider's memory goes back after the work that uses it") {
    ProviderWorld world;
    Provider* provider = world.retain_provided();
    const Address address = world.allocate_in(kPool, 12_MiB);
    REQUIRE(world.free(address).ok());
    world.release();
    CHECK(provider->held.size() == 1);  // its stream is not done
    const int deaths = Provider::deaths;
    world.driver.drain_all();
    world.trim();
    CHECK(Provider::deaths == deaths + 1);
    CHECK(world.check_count > 0);
    world.check_nothing_left();
}

TEST_CASE("record_stream holds on to a provider's block") {
    ProviderWorld world;
    Provider* provider = world.retain_provided();
    const Address address = world.allocate_in(kPool, 12_MiB);
    world.driver.drain_all();
    REQUIRE(world.record(address, kTwo).ok());
    REQUIRE(world.free(address).ok());
    world.driver.drain(kOne);
    world.release();
    CHECK(provider->held.size() == 1);
    CHECK(world.statistics().active[0].current == 1);
    const int deaths = Provider::deaths;
    world.driver.drain_all();
    world.trim();
    CHECK(Provider::deaths == deaths + 1);
    world.check_nothing_left();
}

TEST_CASE("a provider that has no more is a clean out of memory, other failures are told") {
    ProviderWorld world;
    Provider* provider = world.retain_provided();
    provider->room_bytes = 24_MiB;
    const Address first = world.allocate_in(kPool, 22_MiB);
    REQUIRE(first != 0);
    CHECK(world.allocate_in(kPool, 4_MiB) == 0);
    CHECK(world.last.code() == Code::OutOfMemory);
    world.check_audit();
    provider->refuses_with = Code::DriverFailed;
    CHECK(world.allocate_in(kPool, 4_MiB) == 0);
    CHECK(world.last.code() == Code::DriverFailed);
    CHECK(world.last.message() == "refused");
    world.check_audit();
    CHECK(world.allocator->strategy(0) == Strategy::Paged);
    provider->refuses_with.reset();
    REQUIRE(world.free(first).ok());
    CHECK(world.allocate_in(kPool, 10_MiB) == first);
    CHECK(world.allocate(1_MiB, kOne) != 0);  // the first mapping of all
    CHECK(world.allocator->strategy(0) == Strategy::Paged);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("a provider's memory counts against the limit, and idle memory makes room for it") {
    ProviderWorld world(64_MiB);
    REQUIRE(world.allocator->set_limit(0, 32_MiB).ok());
    Provider* provider = world.retain_provided();
    REQUIRE(world.free(world.allocate(20_MiB, kOne)).ok());
    world.driver.drain_all();
    const Address inside = world.allocate_in(kPool, 24_MiB);
    CHECK(inside != 0);
    CHECK(provider->owns(inside));
    CHECK(world.reserved_bytes() <= 32_MiB);
    CHECK(world.allocate(12_MiB, kOne) == 0);
    CHECK(world.allocate(6_MiB, kOne) != 0);
    CHECK(world.allocate_in(kPool, 12_MiB) == 0);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("a provided pool's id may come again while the old one's tensors live") {
    ProviderWorld world;
    Provider* old = world.retain_provided();
    CHECK(world.allocator->retain_pool(0, kPool, std::make_shared<Provider>(world.driver)).code() ==
          Code::InvalidValue);
    const Address first = world.allocate_in(kPool, 12_MiB);
    world.release();
    CHECK(world.uses() == 0);
    Provider* next = world.retain_provided();
    const Address second = world.allocate_in(kPool, 12_MiB);
    CHECK(old->owns(first));
    CHECK(next->owns(second));
    CHECK(world.held().current == 24_MiB);
    REQUIRE(world.free(first).ok());
    world.driver.drain_all();
    world.trim();
    CHECK(world.held().current == 12_MiB);
    CHECK(next->owns(second));
    world.release();
    world.check_nothing_left();
}

TEST_CASE("a provided pool without splits, one that lends, and one that a graph used") {
    ProviderWorld world(64_MiB);
    Provider* provider = world.retain_provided();
    PoolsWorld::ok(world.allocator->set_pool_no_split(0, kPool));
    const Address one = world.allocate_in(kPool, 512);
    const Address two = world.allocate_in(kPool, 512);
    CHECK(provider->held.size() == 2);
    REQUIRE(world.free(one).ok());
    REQUIRE(world.free(two).ok());
    PoolsWorld::ok(world.allocator->set_pool_use_on_oom(0, kPool, true));
    REQUIRE(world.allocate(60_MiB, kOne) != 0);
    const Address lent = world.allocate(1_MiB, kOne);
    if (lent == one || lent == two) { CHECK(provider->owns(lent)); }
    world.free_all();
    world.driver.drain_all();
    world.capture(1_MiB);
    const std::size_t held = provider->held.size();
    world.trim_pool();
    CHECK(provider->held.size() < held);  // the one that no graph used
    CHECK(!provider->held.empty());
    world.release();
    world.release();
    world.check_nothing_left();
}

TEST_CASE("memory that a provider gives twice is refused") {
    class Twice final : public SegmentProvider {
    public:
        explicit Twice(Driver& driver) : driver_(driver) {}
        Result<Address> obtain(Bytes bytes) override {
            if (given_ == 0) { given_ = *driver_.malloc(0, bytes); }
            return given_;
        }
        void give_back(Address address) noexcept override {
            static_cast<void>(driver_.free(0, address));
        }

    private:
        Driver& driver_;
        Address given_ = 0;
    };
    PoolsWorld world;
    world.retain(kPool, std::make_shared<Twice>(world.driver));
    CHECK(world.allocate_in(kPool, 12_MiB) != 0);
    CHECK(world.allocate_in(kPool, 12_MiB) == 0);
    CHECK(world.last.code() == Code::InvalidValue);
    world.check_audit();
    world.release();
    world.check_nothing_left();
}

// What a provider's pool holds is taken off what the others may, which the user has not limited.
TEST_CASE("a provider's pool beside it leaves the slack as small as without a limit") {
    ProviderWorld world(100_MiB);
    world.retain_provided();
    REQUIRE(world.allocate_in(kPool, 12_MiB) != 0);
    std::vector<Address> blocks;
    for (int i = 0; i < 24; ++i) { blocks.push_back(world.allocate(2_MiB, kOne)); }
    for (int i = 0; i < 24; i += 2) { REQUIRE(world.free(blocks[i]).ok()); }
    world.driver.drain_all();
    const Bytes reserved = world.reserved_bytes();
    for (int i = 0; i < 2; ++i) { REQUIRE(world.allocate(4_MiB, kOne) != 0); }
    CHECK(world.reserved_bytes() <= reserved + 1_MiB);  // 2 % of 48 MiB, not 20
    world.free_all();
    world.release();
    world.driver.drain_all();
    world.trim();
    world.check_nothing_left();
}

}  // namespace gma
