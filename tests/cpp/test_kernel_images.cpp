// What cmake/EmbedKernels.cmake built in.
#include <doctest.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/images.h"

namespace gma {

TEST_CASE("kernel images: a fat binary each, or nothing") {
    CHECK(has_cuda_kernels() == (pattern_image().bytes > 0));
    for (const KernelImage image : {pattern_image(), attack_image()}) {
        CHECK((image.bytes > 0) == has_cuda_kernels());
        if (image.bytes > 0) {
            std::uint32_t magic = 0;
            REQUIRE(image.bytes > 1'000);
            std::memcpy(&magic, image.data, sizeof magic);
            CHECK(magic == 0xba55'ed50);
        }
    }
}

}  // namespace gma
