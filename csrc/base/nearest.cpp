#include "base/nearest.h"

#include <algorithm>
#include <cstddef>

namespace gma {
namespace {

// Letters to insert, remove or change; one row of the usual table at a time.
std::size_t edit_distance(std::string_view from, std::string_view to) {
    std::vector<std::size_t> row(to.size() + 1);
    for (std::size_t j = 0; j <= to.size(); ++j) { row[j] = j; }
    for (std::size_t i = 1; i <= from.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= to.size(); ++j) {
            const std::size_t changed = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
        }
    }
    return row[to.size()];
}

}  // namespace

const std::string& nearest(std::string_view name, const std::vector<std::string>& candidates) {
    return *std::min_element(candidates.begin(), candidates.end(),
                             [name](const auto& left, const auto& right) {
                                 return edit_distance(name, left) < edit_distance(name, right);
                             });
}

}  // namespace gma
