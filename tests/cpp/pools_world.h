// Private pools over the host driver, for the tests of test_pools_*.cpp.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "pattern_world.h"

namespace gma {

inline constexpr PoolId kPool{0, 9};
inline constexpr PoolId kOtherPool{1, 0};
inline const Stream kOne = stream_at(1);
inline const Stream kTwo = stream_at(2);

class PoolsWorld : public PatternWorld {
public:
    explicit PoolsWorld(Bytes capacity_bytes = 64_MiB,
                        const std::string& options = "strategy:paged")
        : PatternWorld(options, small_card(capacity_bytes)) {}

    void retain(PoolId pool = kPool, std::shared_ptr<SegmentProvider> provider = nullptr) {
        ok(allocator->retain_pool(0, pool, std::move(provider)));
    }
    void release(PoolId pool = kPool) { ok(allocator->release_pool(0, pool)); }
    // What a with-block around a MemPool does: one use more, and it ends with the block.
    void enter(PoolId pool = kPool, Stream stream = kOne) {
        ok(allocator->begin_pool(0, pool, [stream](Stream asked) { return asked == stream; }));
    }
    void leave(PoolId pool = kPool) {
        ok(allocator->end_pool(0, pool));
        release(pool);
    }
    Address allocate_in(PoolId pool, Bytes bytes, Stream stream = kOne) {
        enter(pool, stream);
        const Address address = allocate(bytes, stream);
        leave(pool);
        return address;
    }
    // Returns the addresses that the graph used; its use of the pool stays.
    Address capture(Bytes bytes, PoolId pool = kPool) {
        enter(pool);
        driver.set_capturing(kOne, true);
        const Address inside = allocate(bytes, kOne);
        REQUIRE(inside != 0);
        ok(free(inside));
        driver.set_capturing(kOne, false);
        ok(allocator->end_pool(0, pool));
        driver.drain_all();
        return inside;
    }
    Bytes trim_pool(PoolId pool = kPool) {
        const Result<Bytes> given = allocator->trim_pool(0, pool);
        REQUIRE_MESSAGE(given, given.status().message());
        check_audit();
        return *given;
    }
    Bytes trim() {
        const Result<Bytes> given = allocator->trim(0);
        REQUIRE_MESSAGE(given, given.status().message());
        check_audit();
        return *given;
    }
    std::uint64_t uses(PoolId pool = kPool) { return allocator->pool_use_count(0, pool); }
    Gauge held(PoolId pool = kPool) {
        for (const PoolBytes& entry : allocator->pool_bytes(0)) {
            if (entry.pool == pool) { return entry.reserved_bytes[0]; }
        }
        return {};
    }
    // The physical pieces under a block.
    std::set<Handle> handles(Address address, Bytes bytes) {
        std::set<Handle> found;
        for (Address at = address; at < address + bytes; at += kPage) {
            const auto mapping = driver.mapping_at(at);
            REQUIRE(mapping.has_value());
            found.insert(mapping->handle);
        }
        return found;
    }
    static void ok(const Status& status) { REQUIRE_MESSAGE(status.ok(), status.message()); }
};

}  // namespace gma
