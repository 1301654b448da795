// What every Driver must do about contents: fill, check, and memory that nobody else reaches.
#pragma once

#include <doctest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "driver_conformance.h"

namespace gma {

class ContentCheck : public ConformanceCheck {
public:
    using ConformanceCheck::ConformanceCheck;

    void fills_are_exact();
    void checks_are_exact();
    void contents_keep_stream_order();
    void many_and_large_ranges();
    void checks_around_a_block(Bytes pages);
    void no_ranges();
    void private_memory_stays_here();

private:
    static constexpr std::uint32_t kPattern = 0x8421'c3f5;  // four bytes that differ

    static int pattern_byte(Address address) {
        return static_cast<int>(kPattern >> (address % 4 * 8) & 0xff);
    }
    void run_first_stream() {
        const Event event = require_value(driver_.record(device_, access_.first_stream));
        require_ok(driver_.synchronize(event));
        driver_.recycle(event);
    }
    void fill(const std::vector<ByteRange>& ranges, std::uint32_t pattern = kPattern) {
        require_ok(driver_.fill(device_, access_.first_stream, ranges, pattern));
    }
    Check check(const std::vector<ByteRange>& ranges) {
        return require_value(driver_.check(device_, access_.first_stream, ranges, kPattern));
    }
    std::vector<Finding> found(Check check) {
        std::vector<Finding> findings;
        CHECK(require_value(driver_.checked(check, true, findings)));
        return findings;
    }
    void unmap_and_release(Bytes pages, Handle handle) {
        require_ok(driver_.unmap(page(0), pages * page_bytes_));
        require_ok(driver_.release(device_, handle, pages * page_bytes_));
    }
};

inline void ContentCheck::fills_are_exact() {
    const Handle handle = mapped(page(0), 1);
    access_.fill(page(0), 0x11, page_bytes_);
    // Within a word, across one, nothing, whole words, many of them, up to the page's last byte.
    const std::vector<ByteRange> ranges = {
        {page(0) + 1, page(0) + 2},       {page(0) + 7, page(0) + 10},
        {page(0) + 16, page(0) + 16},     {page(0) + 32, page(0) + 64},
        {page(0) + 101, page(0) + 1'303}, {page(1) - 5, page(1)}};
    fill(ranges);
    run_first_stream();
    const auto is_filled = [&](Address at) {
        return std::any_of(ranges.begin(), ranges.end(), [at](const ByteRange& range) {
            return range.begin <= at && at < range.end;
        });
    };
    std::vector<Bytes> wrong;  // offsets
    for (const Address from : {page(0), page(1) - 10}) {
        for (Address at = from; access_.has_contents && at < from + 1'400 && at < page(1); ++at) {
            const int wanted = is_filled(at) ? pattern_byte(at) : 0x11;
            if (access_.read_byte(at) != wanted) { wrong.push_back(at - page(0)); }
        }
    }
    CHECK(wrong == std::vector<Bytes>{});
    unmap_and_release(1, handle);
}

inline void ContentCheck::checks_are_exact() {
    const Handle handle = mapped(page(0), 1);
    fill({{page(0), page(1)}});
    run_first_stream();
    for (const Bytes offset : {100, 101, 104, 299, 300, 400, 407}) {
        access_.fill(page(0) + offset, 0x77, 1);
    }
    const std::vector<Finding> findings =
        found(check({{page(0), page(0) + 100},        // ends right before a bad byte
                     {page(0) + 97, page(0) + 203},   // three, not in a row
                     {page(0) + 105, page(0) + 299},  // ends right before one
                     {page(0) + 301, page(0) + 400},  // between two
                     {page(0) + 300, page(0) + 301},  // one byte, and it is bad
                     {page(0) + 401, page(0) + 408},  // the last byte
                     {page(0) + 408, page(0) + 4'096}}));
    if (access_.has_contents) {
        REQUIRE(findings.size() == 3);
        CHECK(findings[0].range == 1);
        CHECK(findings[0].first_bad == page(0) + 100);
        CHECK(findings[0].bad_bytes == 3);
        CHECK(findings[0].found == std::array<unsigned char, 4>{0x77, 0x77, 0x21, 0x84});
        CHECK(findings[1].range == 4);
        CHECK(findings[1].first_bad == page(0) + 300);
        CHECK(findings[1].bad_bytes == 1);
        CHECK(findings[1].found == std::array<unsigned char, 4>{0x77, 0, 0, 0});
        CHECK(findings[2].range == 5);
        CHECK(findings[2].first_bad == page(0) + 407);
        CHECK(findings[2].bad_bytes == 1);
    } else {
        CHECK(findings.empty());
    }
    unmap_and_release(1, handle);
}

inline void ContentCheck::contents_keep_stream_order() {
    const Handle handle = mapped(page(0), 1);
    const std::vector<ByteRange> range = {{page(0) + 3, page(0) + 1'000}};
    fill(range);
    const Check holds = check(range);
    fill(range, ~kPattern);
    const Check holds_no_more = check(range);
    fill(range);
    const Check holds_again = check(range);
    CHECK(found(holds_again).empty());
    const std::vector<Finding> findings = found(holds_no_more);
    CHECK(found(holds).empty());
    if (access_.has_contents) {
        REQUIRE(findings.size() == 1);
        CHECK(findings[0].first_bad == page(0) + 3);
        CHECK(findings[0].bad_bytes == 997);
    }
    const Check polled = check(range);
    run_first_stream();
    std::vector<Finding> none;
    CHECK(require_value(driver_.checked(polled, false, none)));
    CHECK(none.empty());
    unmap_and_release(1, handle);
}

inline void ContentCheck::many_and_large_ranges() {
    const Handle handle = mapped(page(0), 6);
    std::vector<ByteRange> ranges = {{page(2) + 1, page(6) - 1}};  // a kernel's many blocks
    for (Address at = page(0); at < page(2) - 777; at += 777) { ranges.push_back({at, at + 700}); }
    fill(ranges);
    run_first_stream();
    const std::size_t last = ranges.size() - 1;
    access_.fill(ranges[last].begin + 699, 0x77, 2);  // its last byte and the one behind it
    access_.fill(page(5) + 77, 0x77, 2);
    access_.fill(page(6) - 2, 0x77, 2);
    const std::vector<Finding> findings = found(check(ranges));
    // Without kernels only the ends of a large range are looked at.
    const bool sees_all = driver_.content_shortcoming(device_).empty();
    if (access_.has_contents) {
        REQUIRE(findings.size() == 2);
        CHECK(findings.back().range == last);
        CHECK(findings.back().bad_bytes == 1);
        CHECK(findings.front().range == 0);
        CHECK(findings.front().bad_bytes == (sees_all ? 3 : 1));
        CHECK(findings.front().first_bad == (sees_all ? page(5) + 77 : page(6) - 2));
    }
    unmap_and_release(6, handle);
}

inline void ContentCheck::checks_around_a_block(Bytes pages) {
    const Handle handle = mapped(page(0), pages);
    const ByteRange all{page(0), page(pages)};
    const ByteRange block{page(pages - 1) + 333, page(pages) - 3};
    fill({all});
    run_first_stream();
    for (const Address bad : {all.begin, block.begin - 1, block.begin, block.end - 1, block.end}) {
        access_.fill(bad, 0x77, 1);
    }
    const auto look = [&] {
        CheckAndFill queued =
            driver_.check_and_fill(device_, access_.first_stream, all, block, kPattern);
        CHECK(queued.filled.ok());
        run_first_stream();
        std::vector<Finding> findings;
        require_ok(driver_.passed_check(require_value(std::move(queued.check)), findings));
        return findings;
    };
    const std::vector<Finding> findings = look();
    const bool sees_all = driver_.content_shortcoming(device_).empty();
    if (access_.has_contents) {
        REQUIRE(findings.size() == 2);
        CHECK(findings[0].range == 0);
        CHECK(findings[0].first_bad == all.begin);
        CHECK((findings[0].bad_bytes == 2 || !sees_all));
        CHECK(findings[0].found[0] == 0x77);
        CHECK(findings[1].range == 1);
        CHECK(findings[1].first_bad == block.end);
        CHECK(findings[1].bad_bytes == 1);
    }
    CHECK(look().empty());
    CHECK(found(check({all})).empty());  // the block too
    const ByteRange backwards{block.end, block.begin};
    const CheckAndFill refused =
        driver_.check_and_fill(device_, access_.first_stream, backwards, block, kPattern);
    check_refused(refused.check.status());
    check_refused(refused.filled);
    unmap_and_release(pages, handle);
}

inline void ContentCheck::no_ranges() {
    fill({});
    CHECK(found(check({})).empty());
    fill({{page(0), page(0)}});  // nothing is mapped there
    CHECK(found(check({{page(0), page(0)}})).empty());
    check_refused(driver_.fill(device_, nullptr, {{page(1), page(0)}}, kPattern));
    check_refused(driver_.check(device_, nullptr, {{page(1), page(0)}}, kPattern).status());
}

inline void ContentCheck::private_memory_stays_here() {
    const Handle handle = require_value(driver_.create(device_, page_bytes_, Reach::Private));
    require_ok(driver_.map(page(0), page_bytes_, handle));
    require_ok(driver_.set_access(device_, page(0), page_bytes_, Reach::Private));
    access_.fill(page(0), 0x5a, page_bytes_);
    CHECK(access_.read_byte(page(1) - 1) == 0x5a);
    check_refused(driver_.export_handle(device_, handle).status(), "exporting private memory");
    unmap_and_release(1, handle);
}

// Call it in a TEST_CASE that makes the driver: each check gets a fresh one.
inline void check_content_conformance(DriverAccess& access) {
    ContentCheck check(access);
    SUBCASE("fills are exact") { check.fills_are_exact(); }
    SUBCASE("checks are exact") { check.checks_are_exact(); }
    SUBCASE("contents keep stream order") { check.contents_keep_stream_order(); }
    SUBCASE("many and large ranges") { check.many_and_large_ranges(); }
    SUBCASE("checks around a block") { check.checks_around_a_block(1); }
    SUBCASE("checks around a block in a large range") { check.checks_around_a_block(6); }
    SUBCASE("no ranges") { check.no_ranges(); }
    SUBCASE("private memory stays here") { check.private_memory_stays_here(); }
}

}  // namespace gma
