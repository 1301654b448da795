#include "allocator_conformance.h"

namespace gma {
namespace {

Options with(const char* text) {
    Result<Options> options = parse_options(text);
    REQUIRE_MESSAGE(options, options.status().message());
    return *options;
}

}  // namespace

TEST_CASE("paged") { check_allocator_conformance(with("strategy:paged")); }
TEST_CASE("paged, lending") {
    check_allocator_conformance(with("strategy:paged,cross_stream:lend"));
}
TEST_CASE("paged, lean") { check_allocator_conformance(with("strategy:paged,preset:lean")); }
TEST_CASE("split") { check_allocator_conformance(with("strategy:split")); }
TEST_CASE("split, with its options") {
    check_allocator_conformance(
        with("strategy:split,max_split_size_mb:32,roundup_power2_divisions:16,"
             "garbage_collection_threshold:0.5"));
}
TEST_CASE("isolated, stream") { check_allocator_conformance(with("isolation:stream")); }
TEST_CASE("isolated, packed") { check_allocator_conformance(with("isolation:packed")); }
TEST_CASE("isolated, tensor") { check_allocator_conformance(with("isolation:tensor")); }
TEST_CASE("isolated, strict") { check_allocator_conformance(with("isolation:strict")); }
TEST_CASE("direct") { check_allocator_conformance(with("strategy:direct")); }

}  // namespace gma
