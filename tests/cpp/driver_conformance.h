// What every Driver must do, whatever is behind it. Each driver's test brings a DriverAccess; a new
// driver is one more call of check_driver_conformance().
#pragma once

#include <doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "driver/driver.h"

namespace gma {

struct DriverAccess {
    Driver& driver;
    int device = 0;
    std::function<void(Address, unsigned char value, Bytes)> fill;  // waits until it is written
    std::function<int(Address)> read_byte;
    Stream first_stream = nullptr;
    Stream second_stream = nullptr;
    bool has_contents = true;  // false: read_byte() returns what was last filled in, anywhere
    // Refuses all that CUDA's guide forbids. A card lets some of it pass, without a trace.
    bool is_strict = true;
};

inline void require_ok(const Status& status) { REQUIRE_MESSAGE(status.ok(), status.message()); }

template <class T>
T require_value(Result<T> result) {
    REQUIRE_MESSAGE(result, result.status().message());
    return *result;
}

// A refusal leaves everything as it was, and says which call it was.
inline void check_refused(const Status& status,
                          const std::string& rule = "a call must be refused") {
    INFO(rule);
    CHECK_FALSE(status.ok());
    // A card calls some of them not supported (mapping a part of a handle), others invalid.
    CHECK((status.code() == Code::DriverFailed || status.code() == Code::NotSupported));
    CHECK(status.driver_code() != 0);
    CHECK(status.message().find("failed") != std::string::npos);
}

class ConformanceCheck {
public:
    explicit ConformanceCheck(DriverAccess& access)
        : access_(access), driver_(access.driver), device_(access.device) {
        page_bytes_ = require_value(driver_.properties(device_)).page_bytes;
        REQUIRE(page_bytes_ > 0);
        base_ = require_value(driver_.reserve(device_, kPages * page_bytes_, page_bytes_));
    }
    ~ConformanceCheck() { CHECK(driver_.unreserve(base_, kPages * page_bytes_).ok()); }
    ConformanceCheck(const ConformanceCheck&) = delete;
    ConformanceCheck& operator=(const ConformanceCheck&) = delete;

    void properties();
    void reservations();
    void contents_follow_the_handle();
    void handles_are_apart();
    void aliases_are_one_memory();
    void exported_memory_is_the_same();
    void addresses_are_mapped_once();
    void mappings_come_whole();
    void nothing_is_not_mapped();
    void mappings_stay_in_their_reservation();
    void whole_ranges_of_mappings();
    void released_memory_lives_while_mapped();
    void reservation_with_a_mapping_stays();
    void memory_is_finite();
    void segments();
    void events();
    void streams_have_names();

protected:
    static constexpr Bytes kPages = 16;

    Address page(Bytes index) const { return base_ + index * page_bytes_; }
    void map(Address address, Bytes bytes, Handle handle) {
        require_ok(driver_.map(address, bytes, handle));
        require_ok(driver_.set_access(device_, address, bytes));
    }
    // A handle of so many pages, mapped and accessible.
    Handle mapped(Address address, Bytes pages) {
        const Handle handle = require_value(driver_.create(device_, pages * page_bytes_));
        map(address, pages * page_bytes_, handle);
        return handle;
    }

    // A mapping that should have been refused is undone, so that only this rule is broken.
    Status undone(Address address, Bytes bytes, Handle handle) {
        Status status = driver_.map(address, bytes, handle);
        if (status.ok()) { require_ok(driver_.unmap(address, bytes)); }
        return status;
    }
    // What a strict driver refuses, and a card may allow: there it is told, not checked.
    void check_refused_if_strict(const Status& status, const std::string& rule) {
        if (access_.is_strict) {
            check_refused(status, rule);
        } else {
            MESSAGE("this card, ", rule, ": ", status.ok() ? "allowed" : status.message());
        }
    }

    DriverAccess& access_;
    Driver& driver_;
    int device_;
    Bytes page_bytes_ = 0;
    Address base_ = 0;
};

inline void ConformanceCheck::properties() {
    const DeviceProperties properties = require_value(driver_.properties(device_));
    CHECK((properties.page_bytes & (properties.page_bytes - 1)) == 0);
    CHECK(properties.total_bytes >= properties.page_bytes);
    CHECK_FALSE(driver_.properties(driver_.device_count()));
    CHECK_FALSE(driver_.properties(-1));

    const CardMemory before = require_value(driver_.card_memory(device_));
    CHECK(before.free_bytes <= before.total_bytes);
    const Bytes bytes = 8 * page_bytes_;
    const Handle handle = require_value(driver_.create(device_, bytes));
    const CardMemory after = require_value(driver_.card_memory(device_));
    CHECK(after.free_bytes + bytes <= before.free_bytes);
    require_ok(driver_.release(device_, handle, bytes));
}

inline void ConformanceCheck::reservations() {
    const Bytes alignment = 32 * page_bytes_;
    const Bytes bytes = 256_GiB;  // the thread sanitizer leaves little more than 1 TiB
    const Address address = require_value(driver_.reserve(device_, bytes, alignment));
    CHECK(address % alignment == 0);
    require_ok(driver_.unreserve(address, bytes));
    CHECK_FALSE(driver_.reserve(device_, page_bytes_ / 2, page_bytes_));
}

inline void ConformanceCheck::contents_follow_the_handle() {
    const Handle handle = mapped(page(0), 2);
    access_.fill(page(0), 0x5a, 2 * page_bytes_);
    require_ok(driver_.unmap(page(0), 2 * page_bytes_));
    map(page(7), 2 * page_bytes_, handle);
    CHECK(access_.read_byte(page(7)) == 0x5a);
    CHECK(access_.read_byte(page(9) - 1) == 0x5a);
    require_ok(driver_.unmap(page(7), 2 * page_bytes_));
    require_ok(driver_.release(device_, handle, 2 * page_bytes_));
}

inline void ConformanceCheck::handles_are_apart() {
    const Handle first = mapped(page(0), 1);
    const Handle second = mapped(page(1), 1);
    CHECK(first != second);
    access_.fill(page(0), 0x12, page_bytes_);
    access_.fill(page(1), 0x34, page_bytes_);
    if (access_.has_contents) { CHECK(access_.read_byte(page(0)) == 0x12); }
    CHECK(access_.read_byte(page(1)) == 0x34);
    require_ok(driver_.unmap(page(0), 2 * page_bytes_));
    require_ok(driver_.release(device_, first, page_bytes_));
    require_ok(driver_.release(device_, second, page_bytes_));
}

inline void ConformanceCheck::aliases_are_one_memory() {
    const Handle handle = mapped(page(0), 1);
    map(page(5), page_bytes_, handle);
    access_.fill(page(0), 0x11, page_bytes_);
    CHECK(access_.read_byte(page(5) + 100) == 0x11);
    access_.fill(page(5), 0x22, page_bytes_);
    CHECK(access_.read_byte(page(0) + 100) == 0x22);
    require_ok(driver_.unmap(page(0), page_bytes_));
    CHECK(access_.read_byte(page(5) + 100) == 0x22);
    require_ok(driver_.unmap(page(5), page_bytes_));
    require_ok(driver_.release(device_, handle, page_bytes_));
}

inline void ConformanceCheck::exported_memory_is_the_same() {
    const Bytes bytes = 2 * page_bytes_;
    const Handle handle = mapped(page(0), 2);
    Result<int> descriptor = driver_.export_handle(device_, handle);
    if (!access_.has_contents) {
        CHECK(descriptor.status().code() == Code::NotSupported);
    } else {
        REQUIRE_MESSAGE(descriptor, descriptor.status().message());
        const Handle other = require_value(driver_.import_handle(device_, *descriptor, bytes));
        CHECK(::fcntl(*descriptor, F_GETFD) == FD_CLOEXEC);  // import leaves it open
        CHECK(::close(*descriptor) == 0);
        map(page(5), bytes, other);
        access_.fill(page(0), 0x11, bytes);
        CHECK(access_.read_byte(page(6) + 100) == 0x11);
        access_.fill(page(6), 0x22, page_bytes_);
        CHECK(access_.read_byte(page(1) + 100) == 0x22);
        CHECK(access_.read_byte(page(0) + 100) == 0x11);
        require_ok(driver_.release(device_, other, bytes));
    }
    require_ok(driver_.unmap(page(0), bytes));
    require_ok(driver_.release(device_, handle, bytes));
    if (access_.has_contents) {  // it lives on where it was imported
        CHECK(access_.read_byte(page(6) + 100) == 0x22);
        require_ok(driver_.unmap(page(5), bytes));
    }
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    CHECK_FALSE(static_cast<bool>(driver_.import_handle(device_, nothing, bytes)));
    ::close(nothing);
}

inline void ConformanceCheck::addresses_are_mapped_once() {
    const Bytes bytes = 2 * page_bytes_;
    const Handle there = mapped(page(2), 2);
    const Handle handle = require_value(driver_.create(device_, bytes));
    check_refused(undone(page(2), bytes, handle), "mapping where something is mapped");
    check_refused(undone(page(1), bytes, handle), "mapping into the start of a mapping");
    check_refused(undone(page(3), bytes, handle), "mapping from the end of a mapping");
    for (const Address beside : {page(0), page(4)}) {  // the refusals left no trace
        map(beside, bytes, handle);
        require_ok(driver_.unmap(beside, bytes));
    }
    require_ok(driver_.unmap(page(2), bytes));
    require_ok(driver_.release(device_, there, bytes));
    require_ok(driver_.release(device_, handle, bytes));
}

inline void ConformanceCheck::mappings_come_whole() {
    const Bytes bytes = 2 * page_bytes_;
    const Handle handle = require_value(driver_.create(device_, bytes));
    check_refused(undone(page(0), page_bytes_, handle), "mapping a part of a handle");
    map(page(0), bytes, handle);
    check_refused(driver_.unmap(page(0), page_bytes_), "unmapping the first part of a mapping");
    check_refused(driver_.unmap(page(1), page_bytes_), "unmapping the last part of a mapping");
    access_.fill(page(0), 0x29, bytes);
    CHECK(access_.read_byte(page(2) - 1) == 0x29);
    require_ok(driver_.unmap(page(0), bytes));
    require_ok(driver_.release(device_, handle, bytes));
}

inline void ConformanceCheck::nothing_is_not_mapped() {
    const Handle there = mapped(page(0), 1);
    check_refused_if_strict(driver_.unmap(page(8), page_bytes_), "unmapping where nothing is");
    check_refused_if_strict(driver_.set_access(device_, page(8), page_bytes_),
                            "giving access to where nothing is");
    access_.fill(page(0), 0x2a, page_bytes_);
    CHECK(access_.read_byte(page(0)) == 0x2a);
    require_ok(driver_.unmap(page(0), page_bytes_));
    require_ok(driver_.release(device_, there, page_bytes_));
}

inline void ConformanceCheck::mappings_stay_in_their_reservation() {
    const Bytes bytes = 2 * page_bytes_;
    const Handle handle = require_value(driver_.create(device_, bytes));
    check_refused_if_strict(undone(page(kPages - 1), bytes, handle),
                            "mapping past the end of a reservation");
    map(page(kPages - 2), bytes, handle);
    require_ok(driver_.unmap(page(kPages - 2), bytes));
    require_ok(driver_.release(device_, handle, bytes));
}

inline void ConformanceCheck::whole_ranges_of_mappings() {
    const Handle first = require_value(driver_.create(device_, page_bytes_));
    const Handle second = require_value(driver_.create(device_, 2 * page_bytes_));
    require_ok(driver_.map(page(0), page_bytes_, first));
    require_ok(driver_.map(page(1), 2 * page_bytes_, second));
    require_ok(driver_.set_access(device_, page(0), 3 * page_bytes_));
    access_.fill(page(0), 0x33, 3 * page_bytes_);
    CHECK(access_.read_byte(page(3) - 1) == 0x33);
    require_ok(driver_.unmap(page(0), 3 * page_bytes_));
    require_ok(driver_.release(device_, first, page_bytes_));
    require_ok(driver_.release(device_, second, 2 * page_bytes_));
}

inline void ConformanceCheck::released_memory_lives_while_mapped() {
    const Handle handle = mapped(page(0), 1);
    access_.fill(page(0), 0x44, page_bytes_);
    require_ok(driver_.release(device_, handle, page_bytes_));
    CHECK(access_.read_byte(page(0)) == 0x44);
    require_ok(driver_.unmap(page(0), page_bytes_));
}

inline void ConformanceCheck::reservation_with_a_mapping_stays() {
    const Handle handle = mapped(page(0), 1);
    check_refused(driver_.unreserve(base_, kPages * page_bytes_),
                  "giving a reservation back with a mapping inside");
    require_ok(driver_.unmap(page(0), page_bytes_));
    require_ok(driver_.release(device_, handle, page_bytes_));
}

inline void ConformanceCheck::memory_is_finite() {
    const Bytes total_bytes = require_value(driver_.properties(device_)).total_bytes;
    const Bytes too_much = round_up(total_bytes, page_bytes_) + page_bytes_;
    const Status handle = driver_.create(device_, too_much).status();
    CHECK(handle.code() == Code::OutOfMemory);
    CHECK(handle.driver_code() == 2);
    CHECK(driver_.malloc(device_, too_much).status().code() == Code::OutOfMemory);
}

inline void ConformanceCheck::segments() {
    const Bytes bytes = 3 * page_bytes_ + 100;
    const Address address = require_value(driver_.malloc(device_, bytes));
    CHECK(address % kUnitBytes == 0);
    access_.fill(address, 0x66, bytes);
    CHECK(access_.read_byte(address + bytes - 1) == 0x66);
    check_refused(driver_.free(device_, page(0)), "freeing what is no segment");
    require_ok(driver_.free(device_, address));
}

inline void ConformanceCheck::events() {
    const Event first = require_value(driver_.record(device_, access_.first_stream));
    require_ok(driver_.wait(access_.second_stream, first));
    const Event second = require_value(driver_.record(device_, access_.second_stream));
    CHECK(first != second);
    require_ok(driver_.synchronize(second));
    CHECK(require_value(driver_.passed(second)));
    CHECK(require_value(driver_.passed(first)));  // the second stream has waited for it
    driver_.recycle(first);
    driver_.recycle(second);
    const Event third = require_value(driver_.record(device_, nullptr));
    require_ok(driver_.synchronize_device(device_));
    CHECK(require_value(driver_.passed(third)));
    driver_.recycle(third);
}

inline void ConformanceCheck::streams_have_names() {
    const auto first = require_value(driver_.stream_id(device_, access_.first_stream));
    const auto second = require_value(driver_.stream_id(device_, access_.second_stream));
    const auto legacy = require_value(driver_.stream_id(device_, nullptr));
    CHECK(first != second);
    CHECK(first != legacy);
    CHECK(second != legacy);
    CHECK(first == require_value(driver_.stream_id(device_, access_.first_stream)));
    CHECK_FALSE(require_value(driver_.capturing(device_, access_.first_stream)));
    CHECK_FALSE(require_value(driver_.capturing(device_, nullptr)));
}

// Call it in a TEST_CASE that makes the driver: each check gets a fresh one.
inline void check_driver_conformance(DriverAccess& access) {
    ConformanceCheck check(access);
    SUBCASE("properties") { check.properties(); }
    SUBCASE("reservations") { check.reservations(); }
    SUBCASE("contents follow the handle") { check.contents_follow_the_handle(); }
    SUBCASE("handles are apart") { check.handles_are_apart(); }
    SUBCASE("aliases are one memory") { check.aliases_are_one_memory(); }
    SUBCASE("exported memory is the same") { check.exported_memory_is_the_same(); }
    SUBCASE("addresses are mapped once") { check.addresses_are_mapped_once(); }
    SUBCASE("mappings come whole") { check.mappings_come_whole(); }
    SUBCASE("nothing is not mapped") { check.nothing_is_not_mapped(); }
    SUBCASE("mappings stay in their reservation") { check.mappings_stay_in_their_reservation(); }
    SUBCASE("whole ranges of mappings") { check.whole_ranges_of_mappings(); }
    SUBCASE("released memory lives while mapped") { check.released_memory_lives_while_mapped(); }
    SUBCASE("a reservation with a mapping stays") { check.reservation_with_a_mapping_stays(); }
    SUBCASE("memory is finite") { check.memory_is_finite(); }
    SUBCASE("segments") { check.segments(); }
    SUBCASE("events") { check.events(); }
    SUBCASE("streams have names") { check.streams_have_names(); }
}

}  // namespace gma
