#include <doctest.h>

#include <string>

#include "core/options.h"
#include "core/power2_divisions.h"

using namespace gma;

namespace {

std::string failure(std::string_view text) {
    const Result<Options> options = parse_options(text);
    REQUIRE_FALSE(static_cast<bool>(options));
    CHECK(options.status().code() == Code::InvalidValue);
    return options.status().message();
}

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

Bytes rounded(std::string_view divisions, Bytes bytes) {
    const auto parsed = Power2Divisions::parse(divisions);
    REQUIRE(parsed.has_value());
    return parsed->round(bytes);
}

}  // namespace

TEST_CASE("no text gives the defaults of the table") {
    for (const char* text : {"", " ", ",", " , ,"}) {
        const Result<Options> options = parse_options(text);
        REQUIRE(static_cast<bool>(options));
        CHECK(print_options(*options) == print_options(Options{}));
    }
}

TEST_CASE("every option takes its own default, and its range's ends") {
    for (const OptionInfo& info : option_table()) {
        CAPTURE(info.name);
        CHECK(static_cast<bool>(parse_options(info.name + ":" + info.default_value)));
        if (info.kind != "integer" && info.kind != "real") { continue; }
        const std::size_t to = info.range.find(" to ");
        REQUIRE(to != std::string::npos);
        const std::string low = info.range.substr(0, to);
        const std::string high = info.range.substr(to + 4);
        CHECK(static_cast<bool>(parse_options(info.name + ":" + low)));
        CHECK(static_cast<bool>(parse_options(info.name + ":" + high)));
        CHECK_FALSE(static_cast<bool>(parse_options(info.name + ":-1")));
        CHECK_FALSE(static_cast<bool>(parse_options(info.name + ":" + high + "9")));
    }
}

TEST_CASE("values are read, the last of a key counts, spaces do not") {
    const Result<Options> options = parse_options(
        "strategy:direct, slack_percent : 0.5 ,limit_mb:7,strategy:split,"
        "roundup_power2_divisions:[256:1,512:2,>:8],event_ring_entries:9");
    REQUIRE(static_cast<bool>(options));
    CHECK(options->strategy == "split");
    CHECK(strategy_of(*options) == Strategy::Split);
    CHECK(options->slack_percent == 0.5);
    CHECK(options->limit_mb == 7);
    CHECK(options->roundup_power2_divisions == "[256:1,512:2,>:8]");
    CHECK(options->event_ring_entries == 9);
}

TEST_CASE("what is printed reads back as the same") {
    for (const char* text :
         {"", "preset:lean", "preset:fast,slack_percent:3.25",
          "strategy:split,max_split_size_mb:64,roundup_power2_divisions:[64:4,>:0],"
          "garbage_collection_threshold:0.6"}) {
        const Result<Options> options = parse_options(text);
        REQUIRE(static_cast<bool>(options));
        const std::string printed = print_options(*options);
        const Result<Options> again = parse_options(printed);
        REQUIRE(static_cast<bool>(again));
        CHECK(print_options(*again) == printed);
        CHECK(again->slack_percent == options->slack_percent);
        CHECK(again->roundup_power2_divisions == options->roundup_power2_divisions);
    }
}

TEST_CASE("a preset changes defaults only, wherever it stands") {
    const Result<Options> before = parse_options("preset:lean,slack_percent:7");
    const Result<Options> after = parse_options("slack_percent:7,preset:lean");
    REQUIRE(static_cast<bool>(before));
    REQUIRE(static_cast<bool>(after));
    CHECK(print_options(*before) == print_options(*after));
    CHECK(after->slack_percent == 7.0);
    CHECK(after->chunk_divisor > Options{}.chunk_divisor);
    const Result<Options> fast = parse_options("preset:fast");
    REQUIRE(static_cast<bool>(fast));
    CHECK(fast->slack_percent > Options{}.slack_percent);
    CHECK(fast->chunk_divisor < Options{}.chunk_divisor);
}

TEST_CASE("a bad key is named, with the nearest valid one") {
    const std::string message = failure("max_split_sise_mb:64");
    CHECK(contains(message, "max_split_sise_mb"));
    CHECK(contains(message, "max_split_size_mb"));
    CHECK(contains(failure("expandable_segments:True"), "expandable_segments"));
}

TEST_CASE("a bad value is named, with its key and what it takes") {
    const std::string slack = failure("slack_percent:200");
    CHECK(contains(slack, "slack_percent"));
    CHECK(contains(slack, "'200'"));
    CHECK(contains(slack, "0.0 to 100.0"));
    const std::string strategy = failure("strategy:pagd");
    CHECK(contains(strategy, "paged|split|direct"));
    CHECK(contains(strategy, "strategy:paged"));
    CHECK(contains(failure("preset:leen"), "preset:lean"));
    CHECK(contains(failure("limit_mb"), "no value"));
    for (const char* text : {"limit_mb:", "limit_mb:1.5", "limit_mb:1 2", "limit_mb:0x10",
                             "slack_percent:nan", "slack_percent:inf", "slack_percent:2%",
                             "limit_mb:99999999999999999999999", "large_segment_size_mb:10"}) {
        CAPTURE(text);
        CHECK(contains(failure(text), "is not a value it takes"));
    }
}

TEST_CASE("max_split_size_mb is off or at least a segment") {
    CHECK(static_cast<bool>(parse_options("max_split_size_mb:0")));
    CHECK(static_cast<bool>(parse_options("max_split_size_mb:20")));
    CHECK(contains(failure("max_split_size_mb:19"), "at least 20 MiB"));
}

TEST_CASE("roundup_power2_divisions has a form") {
    for (const char* bad : {"3", "-1", "[", "[]", "[256]", "[256:3]", "[200:2]", "[256:1,]8",
                            "256:1", ">:8", "2097152", "[>:8", "[256:]"}) {
        CAPTURE(bad);
        CHECK_FALSE(Power2Divisions::parse(bad).has_value());
        CHECK(contains(failure(std::string("roundup_power2_divisions:") + bad),
                       "roundup_power2_divisions"));
    }
}

TEST_CASE("1, 2, 4 and 8 divisions round 514 MiB as pytorch#161139 asks") {
    CHECK(rounded("1", 514_MiB) == 1024_MiB);
    CHECK(rounded("2", 514_MiB) == 768_MiB);
    CHECK(rounded("4", 514_MiB) == 640_MiB);
    CHECK(rounded("8", 514_MiB) == 576_MiB);
    CHECK(rounded("0", 514_MiB) == 514_MiB);
    CHECK(rounded("", 514_MiB) == 514_MiB);
}

TEST_CASE("rows of divisions hold for their doubling") {
    const char* rows = "[64:8,128:2,512:4,>:1]";
    CHECK(rounded(rows, 9_MiB) == 9_MiB);  // below the first row: as the first row
    CHECK(rounded(rows, 9_MiB + 512) == 10_MiB);
    CHECK(rounded(rows, 65_MiB) == 72_MiB);
    CHECK(rounded(rows, 129_MiB) == 192_MiB);
    CHECK(rounded(rows, 257_MiB) == 257_MiB);  // between two rows: none
    CHECK(rounded(rows, 513_MiB) == 640_MiB);
    CHECK(rounded(rows, 1025_MiB) == 2048_MiB);
    CHECK(rounded("[>:2]", 1_MiB + 512) == 1_MiB + 512_KiB);
    CHECK(rounded("[65536:1]", 33_GiB) == 64_GiB);
}

TEST_CASE("rounding keeps blocks whole, never shrinks, and is idempotent") {
    for (const char* text : {"1", "2", "16", "[1:4,8:2,>:8]"}) {
        for (Bytes bytes = kUnitBytes; bytes < 8_GiB;
             bytes = round_up(bytes + bytes / 7 + 1, kUnitBytes)) {
            const Bytes once = rounded(text, bytes);
            REQUIRE(once >= bytes);
            REQUIRE(once <= 2 * bytes);
            REQUIRE(once % kUnitBytes == 0);
            REQUIRE(rounded(text, once) == once);
        }
    }
}
