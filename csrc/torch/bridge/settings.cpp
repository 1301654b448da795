#include "torch/bridge/settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/util/Exception.h>

#include <cstdlib>

namespace gma::bridge {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

struct Source {
    const char* name;
    const char* text;
};

// The older name wins, as in PyTorch.
Source source() {
    for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
        const char* const text = std::getenv(name);
        if (text != nullptr) { return {name, text}; }
    }
    return {"", ""};
}

// `key` and `key:value` at the outer level; values in brackets have colons and commas of their own.
std::vector<std::string> items_of(std::string_view text) {
    std::vector<std::string> items(1);
    int depth = 0;
    for (const char letter : text) {
        depth += letter == '[' ? 1 : letter == ']' ? -1 : 0;
        if (letter == ',' && depth == 0) {
            items.emplace_back();
        } else if (letter != ' ' && letter != '\t') {
            items.back().push_back(letter);
        }
    }
    return items;
}

// Those of pinned memory are read by PyTorch's allocator for it, which stays in place.
bool is_idle(std::string_view key, std::string_view value, std::string_view strategy) {
    if (key.empty() || key == "per_process_memory_fraction" || key.substr(0, 7) == "pinned_") {
        return false;
    }
    const bool pages = strategy == "paged";
    if (key == "expandable_segments") { return (value == "True") != pages; }
    if (key == "backend") { return value != "native"; }
    return true;
}

}  // namespace

std::vector<std::string> idle_settings(std::string_view text, std::string_view strategy) {
    std::vector<std::string> idle;
    for (const std::string& item : items_of(text)) {
        const std::string_view whole = item;
        const std::size_t colon = whole.find(':');
        const std::string_view key = whole.substr(0, colon);
        const std::string_view value =
            colon == std::string_view::npos ? std::string_view() : whole.substr(colon + 1);
        if (is_idle(key, value, strategy)) { idle.emplace_back(key); }
    }
    return idle;
}

void read_settings_first() noexcept {
    try {
        static_cast<void>(memory_fraction_setting());
    } catch (...) {  // parsed again, and thrown, when the card is first used, as PyTorch does
    }
}

double memory_fraction_setting() {
    static_cast<void>(AcceleratorAllocatorConfig::instance());
    return CUDAAllocatorConfig::per_process_memory_fraction();
}

void warn_of_idle_settings(std::string_view strategy) {
    const Source from = source();
    const std::vector<std::string> idle = idle_settings(from.text, strategy);
    if (idle.empty()) { return; }
    std::string names;
    for (const std::string& name : idle) { names += (names.empty() ? "" : ", ") + name; }
    TORCH_WARN("gpumem_alloc: of ", from.name, ", ", names,
               idle.size() == 1 ? " changes nothing" : " change nothing",
               " while gpumem_alloc serves the memory. Its own options are in GPUMEM_ALLOC_CONF.");
}

void warn_of_isolation(const char* setting) {
    TORCH_WARN("gpumem_alloc: ", setting,
               " changes nothing while the no-sharing mode is in force: memory of cudaMalloc would "
               "have no guards and could leave the process.");
}

}  // namespace gma::bridge
