// The closest of a list of names, for "did you mean ...?".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gma {

// The fewest edits away; the first of equals. `candidates` is not empty.
const std::string& nearest(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace gma
