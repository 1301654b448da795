// What other processes leave of the card, which changes: more is used once they are gone, and less
// is asked for once they have come.
#include <random>

#include "pattern_world.h"

namespace gma {
namespace {

const Stream kOne = stream_at(1);
const Stream kTwo = stream_at(2);
constexpr Bytes kPage = PatternWorld::kPage;

// A card of which another process holds a part.
class SharedCard {
public:
    explicit SharedCard(const std::string& options = "strategy:paged", Bytes card = 1_GiB)
        : world(options, PatternWorld::small_card(card)), card_(card) {}

    void others_leave(Bytes bytes) {
        others_go();
        const Bytes theirs = card_ - world.driver.held_bytes() - bytes;
        if (theirs == 0) { return; }
        Result<Address> taken = world.driver.malloc(0, theirs);
        REQUIRE(static_cast<bool>(taken));
        others_ = *taken;
    }
    void others_go() {
        if (others_ != 0) { REQUIRE(world.driver.free(0, others_).ok()); }
        others_ = 0;
    }
    std::vector<Address> use(Bytes bytes, Bytes each, Stream stream = nullptr) {
        std::vector<Address> made;
        for (Bytes used = 0; used < bytes; used += each) {
            made.push_back(world.allocate(each, stream));
            REQUIRE(made.back() != 0);
        }
        return made;
    }
    // Every other one.
    void free_half(const std::vector<Address>& blocks) {
        for (std::size_t i = 0; i < blocks.size(); i += 2) { REQUIRE(world.free(blocks[i]).ok()); }
        world.driver.drain_all();
    }
    std::uint64_t count(Call call) { return world.driver.totals().count(call); }

    PatternWorld world;

private:
    const Bytes card_;
    Address others_ = 0;
};

}  // namespace

TEST_CASE("a page is found on a card that was full but for less than one") {
    SharedCard card;
    card.others_leave(32_MiB + kPage - 4_KiB);
    card.use(32_MiB, 2_MiB);
    CHECK(card.world.allocate(kPage - 8_KiB) == 0);
    card.others_go();
    CHECK(card.world.allocate(kPage - 8_KiB) != 0);
    card.world.check_nothing_left();
}

TEST_CASE("memory grows again rather than move once others are gone") {
    SharedCard card("strategy:paged,slack_percent:50");
    card.others_leave(66_MiB);
    const std::vector<Address> blocks = card.use(64_MiB, 2_MiB);
    card.free_half(blocks);
    card.use(12_MiB, 4_MiB);
    CHECK(card.world.reserved_bytes() <= 66_MiB);
    const auto moved = card.world.statistics().moved_chunks;
    CHECK(moved > 0);
    card.others_go();
    card.use(12_MiB, 4_MiB);
    CHECK(card.world.statistics().moved_chunks == moved);
    CHECK(card.world.reserved_bytes() >= 74_MiB);
    card.world.check_nothing_left();
}

TEST_CASE("room that others made is taken before the host waits") {
    SharedCard card;
    card.others_leave(64_MiB);
    card.use(60_MiB, 2_MiB);
    const Address shared = card.world.allocate(2_MiB, kOne);
    CHECK(card.world.allocate(100_MiB) == 0);  // asks
    card.world.driver.drain_all();
    REQUIRE(card.world.record(shared, kTwo).ok());
    REQUIRE(card.world.free(shared).ok());
    const std::int64_t retries = card.world.statistics().num_alloc_retries;
    const std::int64_t waits = card.world.statistics().num_sync_all_streams;
    card.others_go();
    card.use(2_MiB, 2_MiB);
    CHECK(card.world.statistics().num_alloc_retries == retries);
    CHECK(card.world.statistics().num_sync_all_streams == waits);
    card.world.check_nothing_left();
}

TEST_CASE("a limit above what others leave does not make handles larger for several streams") {
    std::vector<std::uint64_t> created;
    for (const Bytes limit : {1_GiB - kPage, 256_MiB}) {
        SharedCard card("strategy:paged,chunk_divisor:64");
        REQUIRE(card.world.allocator->set_limit(0, limit).ok());
        card.others_leave(256_MiB);
        card.use(100_MiB, 2_MiB, kOne);
        card.use(100_MiB, 2_MiB, kTwo);
        created.push_back(card.count(Call::Create));
        card.others_go();
        card.world.check_nothing_left();
    }
    CHECK(created[0] == created[1]);
}

TEST_CASE("several streams have large handles in the lower half of what others leave") {
    std::vector<std::uint64_t> created;
    for (const Bytes used : {50_MiB, 110_MiB}) {
        SharedCard alone("strategy:paged,chunk_divisor:64");
        SharedCard card("strategy:paged,chunk_divisor:64");
        card.others_leave(256_MiB);
        for (SharedCard* each : {&alone, &card}) {
            for (const Bytes bytes : {2_MiB, used}) {
                each->use(bytes, 2_MiB, kOne);
                each->use(bytes, 2_MiB, kTwo);
            }
        }
        created.push_back(card.count(Call::Create) - alone.count(Call::Create));
        card.others_go();
        alone.world.check_nothing_left();
        card.world.check_nothing_left();
    }
    CHECK(created[0] == 0);
    CHECK(created[1] > 200);
}

TEST_CASE("a card that others have filled meanwhile refuses once, and its last bytes are spared") {
    SharedCard card("strategy:paged,slack_percent:50");
    std::vector<Address> blocks = card.use(32_MiB, 1_MiB);
    card.others_leave(16_MiB);
    for (const Address block : card.use(12_MiB, 1_MiB)) { blocks.push_back(block); }
    card.free_half(blocks);
    REQUIRE(card.world.allocate(6_MiB) != 0);
    const std::uint64_t refused = card.count(Call::Create);
    const std::size_t live = card.world.driver.live_handles();
    for (int i = 0; i < 3; ++i) { REQUIRE(card.world.allocate(2_MiB) != 0); }
    CHECK(card.count(Call::Create) - refused == card.world.driver.live_handles() - live);
    CHECK(card.world.reserved_bytes() <= 48_MiB);
    card.others_go();
    card.world.check_nothing_left();
}

TEST_CASE("a miss on a nearly full card asks once what is left, and a failure a few times") {
    for (const Bytes left : {64_MiB, 64_MiB + 48_KiB, 65_MiB, 72_MiB}) {
        CAPTURE(left);
        SharedCard card;
        card.others_leave(left);
        const std::vector<Address> blocks = card.use(64_MiB, 1_MiB);
        card.free_half(blocks);
        std::uint64_t before = card.world.driver.card_memory_calls();
        REQUIRE(card.world.allocate(2_MiB) != 0);
        CHECK(card.world.driver.card_memory_calls() - before <= 1);
        before = card.world.driver.card_memory_calls();
        CHECK(card.world.allocate(60_MiB) == 0);
        CHECK(card.world.driver.card_memory_calls() - before <= 5);
        card.others_go();
        card.world.check_nothing_left();
    }
}

// Random programs of three streams beside others that come and go, with trims.
TEST_CASE("nothing runs out of memory that the card has") {
    std::size_t failed_count = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        CAPTURE(seed);
        std::mt19937_64 random{seed};
        SharedCard card("strategy:paged,slack_percent:10", 64_MiB);
        PatternWorld& world = card.world;
        world.probe_bytes = 32_KiB;
        std::vector<Address> live;
        for (int i = 0; i < 400; ++i) {
            const std::uint64_t action = random() % 40;
            const Bytes free_bytes = 64_MiB - world.driver.held_bytes();
            if (action == 0) { card.others_leave(random() % (free_bytes + 1)); }
            if (action == 1) { card.others_go(); }
            if (action == 2) { REQUIRE(static_cast<bool>(world.allocator->trim(0, 4_MiB))); }
            if (action < 5) { world.driver.drain_all(); }
            if (action > 25 && !live.empty()) {
                std::swap(live[random() % live.size()], live.back());
                REQUIRE(world.free(live.back()).ok());
                live.pop_back();
                continue;
            }
            const Bytes bytes =
                random() % 4 == 0 ? 4_KiB + random() % 8_MiB : 2_KiB + random() % 256_KiB;
            const Address address = world.allocate(bytes, stream_at(random() % 3));
            if (address != 0) {
                live.push_back(address);
                continue;
            }
            ++failed_count;
            CHECK(64_MiB - world.driver.held_bytes() < round_up(bytes, kPage));
        }
        world.check_audit();
        card.others_go();
        world.check_nothing_left();
    }
    CHECK(failed_count > 100);
}

}  // namespace gma
