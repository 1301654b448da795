# GMA_KERNEL_IMAGES: the sources that hold csrc/kernels/*.cu compiled, one for each. They need nvcc:
# AUTO takes it where it is found (cmake/CudaHeader.cmake), OFF does without, ON insists.
set(GMA_CUDA_KERNELS AUTO CACHE STRING "Build the CUDA kernels into the module: AUTO, ON or OFF")
set_property(CACHE GMA_CUDA_KERNELS PROPERTY STRINGS AUTO ON OFF)

set(nvcc "")
set(architectures)
if(GMA_CUDA_KERNELS AND GMA_NVCC)  # AUTO is true
    execute_process(COMMAND ${GMA_NVCC} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
    foreach(architecture 75 80 90 100)
        if(known MATCHES "compute_${architecture}[^0-9]")
            list(APPEND architectures ${architecture})
        endif()
    endforeach()
    if(architectures)
        set(nvcc ${GMA_NVCC})
    endif()
endif()
set(is_required OFF)
if(GMA_CUDA_KERNELS AND NOT GMA_CUDA_KERNELS STREQUAL "AUTO")
    set(is_required ON)
    if(NOT nvcc)
        message(FATAL_ERROR "GMA_CUDA_KERNELS is ON, but no nvcc that knows these cards was found: "
                            "set CUDACXX or CUDA_HOME, or put nvcc on PATH.")
    endif()
endif()
if(nvcc)
    message(STATUS "CUDA kernels: ${nvcc} for ${architectures}")
else()
    message(STATUS "CUDA kernels: none")
endif()

set(GMA_KERNEL_IMAGES)
set(embed ${CMAKE_CURRENT_SOURCE_DIR}/cmake/EmbedKernels.cmake)
set(kernels ${CMAKE_CURRENT_SOURCE_DIR}/csrc/kernels)
foreach(name pattern attack)
    set(image ${CMAKE_CURRENT_BINARY_DIR}/${name}_image.cpp)
    add_custom_command(
        OUTPUT ${image}
        COMMAND ${CMAKE_COMMAND} "-DNVCC=${nvcc}" "-DARCHITECTURES=${architectures}"
                -DREQUIRED=${is_required} -DKERNELS=${kernels}/${name}.cu
                -DINCLUDE=${CMAKE_CURRENT_SOURCE_DIR}/csrc -DFUNCTION=${name}_image
                -DOUTPUT=${image} -P ${embed}
        DEPENDS ${kernels}/${name}.cu ${kernels}/${name}.h ${embed}
        COMMENT "Compiling ${name}.cu for the module"
        VERBATIM)
    list(APPEND GMA_KERNEL_IMAGES ${image})
endforeach()
