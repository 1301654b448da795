// PyTorch's own settings, PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF: what they mean for us.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gma::bridge {

// Lets PyTorch parse them while its own allocator is in place: it refuses to see `backend:native`
// once ours is. What it refuses otherwise is for memory_fraction_setting() to say.
void read_settings_first() noexcept;

// Parses them as PyTorch does, so that what it refuses is refused here too (a ValueError), and
// returns the share of each card that this process may hold.
double memory_fraction_setting();

// Warns once of the settings that change nothing with this `strategy`.
void warn_of_idle_settings(std::string_view strategy);
// Of a setting that would take memory from elsewhere, which isolation does not do.
void warn_of_isolation(const char* setting);

// The keys of "key:value,key:[a:1,b:2]" that have no effect.
std::vector<std::string> idle_settings(std::string_view text, std::string_view strategy);

}  // namespace gma::bridge
