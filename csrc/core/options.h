// Options: a plain struct made from options.def, and the parser of "key:value,key:value".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace gma {

enum class Strategy : std::uint8_t { Paged, Split, Direct, Isolated };

struct Options {
#define GMA_INTEGER(name, value, unit, min, max, sentence) std::uint64_t name = value;
#define GMA_REAL(name, value, unit, min, max, sentence) double name = value;
#define GMA_CHOICE(name, value, choices, sentence) std::string name = value;
#define GMA_TEXT(name, value, form, sentence) std::string name = value;
#include "core/options.def"
#undef GMA_INTEGER
#undef GMA_REAL
#undef GMA_CHOICE
#undef GMA_TEXT
};

struct OptionInfo {
    std::string name, kind, default_value, unit, range, sentence;
};
const std::vector<OptionInfo>& option_table();

// "strategy:split,max_split_size_mb:64" over the defaults (a preset's values first, wherever it
// stands). A bad key or value is Code::InvalidValue and names the key and the nearest valid one.
Result<Options> parse_options(std::string_view text);
// Every option in force, in the same form.
std::string print_options(const Options& options);

Strategy strategy_of(const Options& options);

}  // namespace gma
