// Which torch this is compiled against. One source serves 2.11 to 2.15; what an older one lacks is
// left out by these.
#pragma once

#include <torch/headeronly/version.h>

#define GMA_TORCH_AT_LEAST(minor) \
    (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

static_assert(GMA_TORCH_AT_LEAST(11), "the bridge needs torch 2.11 or later");
