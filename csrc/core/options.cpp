#include "core/options.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include "base/nearest.h"
#include "core/power2_divisions.h"

namespace gma {
namespace {

// Reading a value: false leaves it as it was.

template <class Number>
bool read_number(std::string_view text, Number min, Number max, Number& to) {
    Number value{};
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end || !(value >= min && value <= max)) { return false; }
    to = value;
    return true;
}

std::vector<std::string> split_choices(std::string_view choices) {
    std::vector<std::string> all;
    while (!choices.empty()) {
        const std::string_view one = choices.substr(0, choices.find('|'));
        choices.remove_prefix(std::min(choices.size(), one.size() + 1));
        all.emplace_back(one);
    }
    return all;
}

bool read_choice(std::string_view text, std::string_view choices, std::string& to) {
    for (const std::string& choice : split_choices(choices)) {
        if (choice == text) {
            to = text;
            return true;
        }
    }
    return false;
}

bool read_text(std::string_view text, std::string& to) {
    to = text;
    return true;
}

std::string print_real(double value) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    std::string text(digits.data(), end);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

// What the table gives for an option, beside its row.
struct Field {
    bool (*read)(std::string_view text, Options& options);
    std::string (*print)(const Options& options);
};

const std::vector<Field>& fields() {
    static const std::vector<Field> all = {
#define GMA_INTEGER(name, value, unit, min, max, sentence)           \
    {[](std::string_view text, Options& to) {                        \
         return read_number<std::uint64_t>(text, min, max, to.name); \
     },                                                              \
     [](const Options& from) { return std::to_string(from.name); }},
#define GMA_REAL(name, value, unit, min, max, sentence)       \
    {[](std::string_view text, Options& to) {                 \
         return read_number<double>(text, min, max, to.name); \
     },                                                       \
     [](const Options& from) { return print_real(from.name); }},
#define GMA_CHOICE(name, value, choices, sentence)                                           \
    {[](std::string_view text, Options& to) { return read_choice(text, choices, to.name); }, \
     [](const Options& from) { return from.name; }},
#define GMA_TEXT(name, value, form, sentence)                                     \
    {[](std::string_view text, Options& to) { return read_text(text, to.name); }, \
     [](const Options& from) { return from.name; }},
#include "core/options.def"
#undef GMA_INTEGER
#undef GMA_REAL
#undef GMA_CHOICE
#undef GMA_TEXT
    };
    return all;
}

const std::vector<std::string>& names() {
    static const std::vector<std::string> all = [] {
        std::vector<std::string> collected;
        for (const OptionInfo& info : option_table()) { collected.push_back(info.name); }
        return collected;
    }();
    return all;
}

// What happened, why, what to do: a line each.
Status complaint(std::string_view key, const std::string& what, const std::string& why,
                 const std::string& remedy) {
    return {Code::InvalidValue,
            "option " + std::string(key) + ": " + what + "\n" + why + "\n" + remedy};
}

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::string as_given(std::string_view key, std::string_view value) {
    return "\"" + std::string(key) + ":" + std::string(value) + "\"";
}

Status unknown_key(std::string_view key) {
    const std::string& closest = nearest(key, names());
    return complaint(key, "there is no such option.", "The nearest valid one is " + closest + ".",
                     "Use that one; help(gpumem_alloc.Options) lists all of them.");
}

Status bad_value(const OptionInfo& info, std::string_view value) {
    if (info.kind == "choice") {
        return complaint(
            info.name, quoted(value) + " is not one of its values.", "It takes " + info.range + ".",
            "Did you mean " + as_given(info.name, nearest(value, split_choices(info.range))) + "?");
    }
    const std::string kind = info.kind == "integer" ? "a whole number" : "a number";
    const std::string unit = info.unit.empty() || info.unit == "count" ? "" : ", in " + info.unit;
    return complaint(info.name, quoted(value) + " is not a value it takes.",
                     "It takes " + kind + " from " + info.range + unit + ".",
                     "Give it as in " + as_given(info.name, info.default_value) + ".");
}

struct Pair {
    std::string_view key, value;
    bool has_value;
};

std::string_view trimmed(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t\n");
    if (first == std::string_view::npos) { return {}; }
    return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// Commas between brackets belong to the value.
std::vector<Pair> split_pairs(std::string_view text) {
    std::vector<Pair> pairs;
    std::size_t start = 0;
    int depth = 0;
    for (std::size_t at = 0; at <= text.size(); ++at) {
        const char letter = at < text.size() ? text[at] : ',';
        depth += (letter == '[') - (letter == ']');
        if (letter != ',' || (depth > 0 && at < text.size())) { continue; }
        const std::string_view pair = trimmed(text.substr(start, at - start));
        start = at + 1;
        if (pair.empty()) { continue; }
        const std::size_t colon = std::min(pair.find(':'), pair.size());
        const std::string_view value = pair.substr(std::min(colon + 1, pair.size()));
        pairs.push_back({trimmed(pair.substr(0, colon)), trimmed(value), colon < pair.size()});
    }
    return pairs;
}

Status read_pair(const Pair& pair, Options& options) {
    for (std::size_t i = 0; i < option_table().size(); ++i) {
        const OptionInfo& info = option_table()[i];
        if (info.name != pair.key) { continue; }
        if (!pair.has_value) {
            return complaint(pair.key, "it has no value.", "Options are written \"key:value\".",
                             "Give it as in " + as_given(info.name, info.default_value) + ".");
        }
        return fields()[i].read(pair.value, options) ? Status() : bad_value(info, pair.value);
    }
    return unknown_key(pair.key);
}

void apply_preset(Options& options) {
    if (options.preset == "lean") {
        options.slack_percent = 0.9;
        options.stream_slack_mb = 0;
        options.chunk_divisor = 1024;
        options.max_chunk_mb = 8;
    } else if (options.preset == "fast") {
        options.slack_percent = 10.0;
        options.chunk_divisor = 64;
    }
}

// A level and the strategy follow from each other, and no level lets streams share memory.
void apply_isolation(Options& options) {
    if (options.strategy == "isolated" && options.isolation == "off") {
        options.isolation = "tensor";
    }
    if (options.isolation == "off") { return; }
    if (options.strategy == "paged") { options.strategy = "isolated"; }
    options.cross_stream = "never";
}

// What a range cannot say.
Status check_meaning(const Options& options) {
    if (options.isolation != "off" && options.strategy != "isolated") {
        return complaint("isolation", "it does not go with " + quoted(options.strategy) + ".",
                         "Isolation is a strategy of its own.",
                         "Leave the strategy out, or give it as in \"strategy:isolated\".");
    }
    if (!std::has_single_bit(options.guard_alignment)) {
        return complaint(
            "guard_alignment",
            quoted(std::to_string(options.guard_alignment)) + " is not a value it takes.",
            "It takes a power of two.", "Give it as in \"guard_alignment:16\".");
    }
    if (options.max_split_size_mb > 0 && options.max_split_size_mb < 20) {
        return complaint(
            "max_split_size_mb",
            quoted(std::to_string(options.max_split_size_mb)) + " is not a value it takes.",
            "It takes 0, which is unlimited, or at least 20 MiB, the segment size.",
            "Give it as in \"max_split_size_mb:20\".");
    }
    if (!Power2Divisions::parse(options.roundup_power2_divisions)) {
        return complaint("roundup_power2_divisions",
                         quoted(options.roundup_power2_divisions) + " is not a value it takes.",
                         "It takes N, or N by size in MiB; sizes and N are powers of two, and 0 "
                         "rounds nothing.",
                         "Give it as in \"roundup_power2_divisions:8\" or "
                         "\"roundup_power2_divisions:[256:1,512:2,>:8]\".");
    }
    return {};
}

}  // namespace

const std::vector<OptionInfo>& option_table() {
    static const std::vector<OptionInfo> table = {
#define GMA_INTEGER(name, value, unit, min, max, sentence) \
    {#name, "integer", #value, unit, #min " to " #max, sentence},
#define GMA_REAL(name, value, unit, min, max, sentence) \
    {#name, "real", #value, unit, #min " to " #max, sentence},
#define GMA_CHOICE(name, value, choices, sentence) {#name, "choice", value, "", choices, sentence},
#define GMA_TEXT(name, value, form, sentence) {#name, "text", value, "", form, sentence},
#include "core/options.def"
#undef GMA_INTEGER
#undef GMA_REAL
#undef GMA_CHOICE
#undef GMA_TEXT
    };
    return table;
}

Result<Options> parse_options(std::string_view text) {
    const std::vector<Pair> pairs = split_pairs(text);
    Options options;
    for (const Pair& pair : pairs) {
        if (pair.key != "preset") { continue; }
        if (Status status = read_pair(pair, options); !status.ok()) { return status; }
    }
    apply_preset(options);
    for (const Pair& pair : pairs) {
        if (Status status = read_pair(pair, options); !status.ok()) { return status; }
    }
    apply_isolation(options);
    if (Status status = check_meaning(options); !status.ok()) { return status; }
    return options;
}

std::string print_options(const Options& options) {
    std::string text;
    for (std::size_t i = 0; i < option_table().size(); ++i) {
        const std::string value = fields()[i].print(options);
        if (value.empty()) { continue; }  // a text option that is off
        text += (text.empty() ? "" : ",") + option_table()[i].name + ":" + value;
    }
    return text;
}

Strategy strategy_of(const Options& options) {
    if (options.strategy == "split") { return Strategy::Split; }
    if (options.strategy == "direct") { return Strategy::Direct; }
    const bool guarded = options.isolation == "tensor" || options.isolation == "strict";
    return guarded ? Strategy::Isolated : Strategy::Paged;
}

}  // namespace gma
