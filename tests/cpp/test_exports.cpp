// Memory between processes. Two host drivers in one process stand for two processes: each has its
// own memory, and a descriptor is all that they share.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>

#include "pattern_world.h"

namespace gma {
namespace {

constexpr Bytes kCard = 64_MiB;
const Stream kOne = stream_at(1);
const Stream kTwo = stream_at(2);
const char* const kPaged = "strategy:paged";

HostDriverConfig card(Bytes bytes = kCard) { return PatternWorld::small_card(bytes); }

std::size_t open_descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

ExportedBlock export_from(PatternWorld& world, Address address) {
    Result<ExportedBlock> exported = world.allocator->export_block(address);
    REQUIRE_MESSAGE(exported, exported.status().message());
    return *exported;
}

Address import_into(PatternWorld& world, const ExportedBlock& block) {
    Result<Address> address = world.allocator->import_block(0, block.pieces);
    REQUIRE_MESSAGE(address, address.status().message());
    return *address;
}

Bytes total_bytes(const ExportedBlock& block) {
    Bytes sum = 0;
    for (const ExportedPiece& piece : block.pieces) { sum += piece.bytes; }
    return sum;
}

void* at(Address address) { return reinterpret_cast<void*>(address); }

bool same_bytes(Address sender, const ExportedBlock& block, Address receiver) {
    return std::memcmp(at(sender), at(receiver + block.offset), block.bytes) == 0;
}

void drop(PatternWorld& world, Address address) {
    const Status status = world.allocator->drop_import(address);
    CHECK_MESSAGE(status.ok(), status.message());
}

}  // namespace

TEST_CASE("what one process writes the other reads, and the other way") {
    PatternWorld sender(kPaged, card());
    PatternWorld receiver(kPaged, card());
    const std::size_t before = open_descriptors();
    for (const Bytes bytes : {1_B, 500_B, 8_KiB, 9_KiB, 64_KiB, 1_MiB + 1, 20_MiB}) {
        CAPTURE(bytes);
        const Address address = sender.allocate(bytes, kOne);
        sender.driver.drain_all();
        const ExportedBlock block = export_from(sender, address);
        CHECK(block.device == 0);
        CHECK(block.bytes >= bytes);
        CHECK(block.offset + block.bytes <= total_bytes(block));
        CHECK(block.other_bytes == total_bytes(block) - block.bytes);
        CHECK(block.offset < block.pieces.front().bytes);
        const Address mapped = import_into(receiver, block);
        CHECK(same_bytes(address, block, mapped));
        std::memset(at(mapped + block.offset), 0x5a, bytes);
        CHECK(same_bytes(address, block, mapped));
        CHECK(*static_cast<unsigned char*>(at(address + bytes - 1)) == 0x5a);
        // Exactly the address range that is needed, none of the card's account.
        const std::vector<HostRange> ranges = receiver.driver.reserved_ranges();
        CHECK(std::count_if(ranges.begin(), ranges.end(), [&](const HostRange& range) {
                  return range.start == mapped && range.bytes == total_bytes(block);
              }) == 1);
        CHECK(receiver.driver.held_bytes() == 0);
        CHECK(receiver.reserved_bytes() == 0);
        drop(receiver, mapped);
        CHECK(receiver.driver.live_handles() == 0);
        CHECK(receiver.driver.reserved_ranges().empty());
        sender.blocks.erase(address);  // its pattern is gone
        CHECK(sender.free(address).ok());
        CHECK(open_descriptors() == before + 1);  // the sender's memory itself
    }
    receiver.check_nothing_left();
    sender.check_nothing_left();
}

TEST_CASE("asked again, an export answers the same; chunks share one descriptor") {
    PatternWorld world(kPaged, card());
    std::vector<Address> blocks;
    for (int i = 0; i < 6; ++i) { blocks.push_back(world.allocate(100_KiB, kOne)); }
    const Address small = world.allocate(700_B, kOne);
    const std::size_t before = open_descriptors();
    std::vector<int> descriptors;
    for (int round = 0; round < 2; ++round) {
        for (const Address address : blocks) {
            const ExportedBlock block = export_from(world, address);
            for (const ExportedPiece& piece : block.pieces) {
                descriptors.push_back(piece.descriptor);
            }
        }
        descriptors.push_back(export_from(world, small).pieces.at(0).descriptor);
        if (round == 0) { continue; }
        const std::size_t half = descriptors.size() / 2;
        CHECK(std::equal(descriptors.begin(), descriptors.begin() + static_cast<long>(half),
                         descriptors.begin() + static_cast<long>(half)));
    }
    std::sort(descriptors.begin(), descriptors.end());
    descriptors.erase(std::unique(descriptors.begin(), descriptors.end()), descriptors.end());
    CHECK(descriptors.size() < 2 * blocks.size());
    CHECK(open_descriptors() == before + descriptors.size());
    for (const Address address : blocks) { CHECK(world.free(address).ok()); }
    CHECK(world.free(small).ok());
    CHECK(open_descriptors() == before);
    world.check_nothing_left();
}

TEST_CASE("an export ends with the free of its block, also where another stream uses it") {
    for (const Bytes bytes : {600_B, 1_MiB}) {
        CAPTURE(bytes);
        PatternWorld world(kPaged, card());
        const Address address = world.allocate(bytes, kOne);
        const std::size_t before = open_descriptors();
        export_from(world, address);
        CHECK(open_descriptors() > before);
        REQUIRE(world.record(address, kTwo).ok());
        REQUIRE(world.record(address, kOne).ok());
        CHECK(world.free(address).ok());
        CHECK(open_descriptors() == before);
        CHECK(world.free(address).code() == Code::InvalidValue);  // freed twice, still noticed
        CHECK(world.allocator->export_block(address).status().code() == Code::InvalidValue);
        const Address next = world.allocate(bytes, kOne);
        CHECK(next != address);  // the second stream is not done
        world.driver.drain_all();
        export_from(world, next);
        world.check_nothing_left();
        CHECK(open_descriptors() == before);  // the driver's own is left
    }
}

TEST_CASE("exported small objects keep their slab's books right") {
    PatternWorld world(kPaged, card());
    std::vector<Address> all;
    for (int i = 0; i < 100; ++i) { all.push_back(world.allocate(1_KiB, kOne)); }
    for (std::size_t i = 0; i < all.size(); i += 3) { export_from(world, all[i]); }
    const DeviceStatistics before = world.statistics();
    CHECK(before.allocation[0].current == 100);
    for (std::size_t i = 0; i < all.size(); i += 2) { CHECK(world.free(all[i]).ok()); }
    world.driver.drain_all();
    world.check_audit();
    CHECK(world.statistics().allocation[0].current == 50);
    CHECK(world.statistics().active[0].current == 50);
    for (int i = 0; i < 50; ++i) { CHECK(world.allocate(1_KiB, kOne) != 0); }
    CHECK(world.statistics().active_bytes[0].current == before.active_bytes[0].current);
    world.check_nothing_left();
}

TEST_CASE("exported memory stays where it is under pressure and trims") {
    PatternWorld sender(kPaged, card(24_MiB));
    PatternWorld receiver(kPaged, card());
    std::vector<Address> held;
    for (int i = 0; i < 20; ++i) { held.push_back(sender.allocate(1_MiB - 40_KiB, kOne)); }
    const Address small = sender.allocate(300_B, kOne);
    sender.driver.drain_all();
    std::vector<std::pair<ExportedBlock, Address>> exported;
    std::vector<Address> kept = {held[3], held[10], held[17], small};
    for (const Address address : kept) {
        const ExportedBlock block = export_from(sender, address);
        exported.emplace_back(block, import_into(receiver, block));
    }
    for (const Address address : held) {
        const bool stays = std::find(kept.begin(), kept.end(), address) != kept.end();
        if (!stays) { CHECK(sender.free(address).ok()); }
    }
    // Larger than any hole between the exported ones: what is idle around them has to move.
    const Address large = sender.allocate(14_MiB, kTwo);
    CHECK(large != 0);
    CHECK(sender.statistics().moved_chunks > 0);
    CHECK(sender.free(large).ok());
    sender.driver.drain_all();
    CHECK(static_cast<bool>(sender.allocator->trim(0)));
    for (std::size_t i = 0; i < kept.size(); ++i) {
        CHECK(same_bytes(kept[i], exported[i].first, exported[i].second));
        // New data too: it is still the same memory, not a copy that looks alike.
        std::memset(at(exported[i].second + exported[i].first.offset), 0x11, 8);
        CHECK(same_bytes(kept[i], exported[i].first, exported[i].second));
        sender.blocks.erase(kept[i]);
        CHECK(sender.free(kept[i]).ok());
        drop(receiver, exported[i].second);
    }
    receiver.check_nothing_left();
    sender.check_nothing_left();
}

TEST_CASE("what cannot be exported or imported is refused") {
    PatternWorld world(kPaged, card());
    const Address address = world.allocate(1_MiB);
    const auto code_of = [&world](Address asked) {
        return world.allocator->export_block(asked).status().code();
    };
    CHECK(code_of(12345) == Code::InvalidValue);
    CHECK(code_of(0) == Code::InvalidValue);
    CHECK(code_of(address + 512) == Code::InvalidValue);
    for (const char* segments : {"strategy:split", "strategy:direct"}) {
        PatternWorld other(segments, card());
        const Address block = other.allocate(1_MiB);
        CHECK(other.allocator->export_block(block).status().code() == Code::NotSupported);
        other.check_nothing_left();
    }
    CHECK_FALSE(static_cast<bool>(world.allocator->import_block(0, {})));
    CHECK_FALSE(static_cast<bool>(world.allocator->import_block(7, {{kCard, 0, 0}})));
    const ExportedBlock block = export_from(world, address);
    ExportedBlock wrong = block;
    wrong.pieces.back().bytes += PatternWorld::kPage;
    CHECK_FALSE(static_cast<bool>(world.allocator->import_block(0, wrong.pieces)));
    CHECK(world.allocator->drop_import(address).code() == Code::InvalidValue);
    world.check_nothing_left();

    HostDriverConfig plain = card();
    plain.mapping_supported = false;
    PatternWorld old(kPaged, plain);
    CHECK(old.allocator->import_block(0, block.pieces).status().code() == Code::NotSupported);
}

TEST_CASE("a dropped import waits for the device, and for the end of a capture") {
    PatternWorld sender(kPaged, card());
    PatternWorld receiver(kPaged, card());
    const Address address = sender.allocate(1_MiB, kOne);
    sender.driver.drain_all();
    const ExportedBlock block = export_from(sender, address);
    Address mapped = import_into(receiver, block);
    bool has_read = false;
    receiver.driver.launch(kTwo, [&] { has_read = same_bytes(address, block, mapped); });
    drop(receiver, mapped);
    CHECK(has_read);
    CHECK(receiver.driver.live_handles() == 0);

    mapped = import_into(receiver, block);
    receiver.driver.set_capturing(kTwo, true);
    drop(receiver, mapped);
    CHECK(receiver.driver.live_handles() > 0);
    receiver.driver.set_capturing(kTwo, false);
    drop(receiver, import_into(receiver, block));
    CHECK(receiver.driver.live_handles() == 0);
    CHECK(receiver.driver.reserved_ranges().empty());
    sender.check_nothing_left();
}

TEST_CASE("each driver call of an export or import fails in turn, and nothing leaks") {
    const std::size_t open_before = open_descriptors();
    bool is_past_last = false;
    int failed_count = 0;
    for (std::uint64_t k = 1; !is_past_last; ++k) {
        CAPTURE(k);
        REQUIRE(k < 200);
        PatternWorld sender(kPaged, PatternWorld::small_card(kCard, 1_MiB));
        PatternWorld receiver(kPaged, PatternWorld::small_card(kCard, 1_MiB));
        const Address address = sender.allocate(10_MiB, kOne);
        sender.driver.drain_all();
        sender.driver.fail_call(k);
        Result<ExportedBlock> block = sender.allocator->export_block(address);
        failed_count += !block;
        if (!block) { block = sender.allocator->export_block(address); }
        REQUIRE_MESSAGE(block, block.status().message());
        CHECK(block->pieces.size() > 2);
        receiver.driver.fail_call(k);
        Result<Address> mapped = receiver.allocator->import_block(0, block->pieces);
        failed_count += !mapped;
        if (!mapped) {
            CHECK(receiver.driver.live_handles() == 0);
            CHECK(receiver.driver.reserved_ranges().empty());
            mapped = receiver.allocator->import_block(0, block->pieces);
        }
        REQUIRE_MESSAGE(mapped, mapped.status().message());
        CHECK(same_bytes(address, *block, *mapped));
        drop(receiver, *mapped);
        is_past_last = sender.driver.faults_fired() + receiver.driver.faults_fired() == 0;
        sender.driver.clear_faults();
        receiver.driver.clear_faults();
        drop(receiver, import_into(receiver, *block));  // what was refused is tried again
        CHECK(receiver.driver.live_handles() == 0);
        CHECK(receiver.driver.reserved_ranges().empty());
        receiver.check_nothing_left();
        sender.check_nothing_left();
    }
    CHECK(failed_count > 10);
    CHECK(open_descriptors() == open_before);
}

TEST_CASE("a forked child closes the descriptors, its parent keeps them") {
    PatternWorld world(kPaged, card());
    const Address address = world.allocate(1_MiB);
    const int descriptor = export_from(world, address).pieces.at(0).descriptor;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) { ::_exit(::fcntl(descriptor, F_GETFD) == -1 ? 0 : 1); }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(::fcntl(descriptor, F_GETFD) == FD_CLOEXEC);
    world.check_nothing_left();
}

TEST_CASE("any order of allocations, exports and frees: descriptors end with their chunks") {
    PatternWorld world(kPaged, card());
    std::mt19937 random(7);
    const std::size_t before = open_descriptors();
    std::map<Address, ExportedBlock> exported;
    for (int step = 0; step < 2000; ++step) {
        const auto dice = random() % 10;
        const auto picked = [&] {
            return std::next(world.blocks.begin(),
                             static_cast<long>(random() % world.blocks.size()))
                ->first;
        };
        if (world.blocks.empty() || dice < 4) {
            world.allocate(Bytes{1} << (random() % 20), random() % 2 == 0 ? kOne : kTwo);
        } else if (dice < 7) {
            const Address address = picked();
            exported[address] = export_from(world, address);
        } else {
            const Address address = picked();
            exported.erase(address);
            CHECK(world.free(address).ok());
        }
        if (step % 50 == 0) { world.driver.drain_all(); }
        std::map<int, Bytes> descriptors;
        for (const auto& [address, block] : exported) {
            for (const ExportedPiece& piece : block.pieces) {
                descriptors[piece.descriptor] = piece.bytes;
            }
        }
        const std::size_t memory_file = 1;
        CHECK(open_descriptors() == before + memory_file + descriptors.size());
    }
    world.driver.drain_all();
    world.check_audit();
    world.check_nothing_left();
}

}  // namespace gma
