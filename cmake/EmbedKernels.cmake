# Run at build time: compiles KERNELS (a .cu file) with NVCC for the ARCHITECTURES and writes OUTPUT,
# a C++ source with the fat binary as an array. Where NVCC is empty, or fails and REQUIRED is not
# set, the array is empty: the kernels are a faster way, not the only one.
set(image "")
if(NVCC)
    cmake_path(REPLACE_EXTENSION OUTPUT LAST_ONLY fatbin OUTPUT_VARIABLE fatbin)
    set(codes)
    foreach(architecture ${ARCHITECTURES})
        list(APPEND codes -gencode arch=compute_${architecture},code=sm_${architecture})
    endforeach()
    list(GET ARCHITECTURES 0 lowest)  # others compile this one when they load it
    list(APPEND codes -gencode arch=compute_${lowest},code=compute_${lowest})
    # The host compiler only reads headers here, so any version of it will do.
    execute_process(
        COMMAND ${NVCC} --fatbin -std=c++17 -Xfatbin=-compress-all -allow-unsupported-compiler -I${INCLUDE} ${codes}
                -o ${fatbin} ${KERNELS}
        RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(result EQUAL 0)
        file(READ ${fatbin} image HEX)
        string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," image "${image}")
    elseif(REQUIRED)
        message(FATAL_ERROR "${NVCC} did not compile ${KERNELS}:\n${text}")
    else()
        message(WARNING "built without ${KERNELS}, since ${NVCC} did not compile it:\n${text}")
    endif()
endif()

set(array "")
set(value "{}")
if(image)
    set(array "alignas(16) static const unsigned char image[] = {${image}};\n")
    set(value "{image, sizeof image}")
endif()
file(WRITE ${OUTPUT} "// Made by cmake/EmbedKernels.cmake.
#include \"kernels/images.h\"

namespace gma {
${array}KernelImage ${FUNCTION}() { return ${value}; }
}  // namespace gma
")
