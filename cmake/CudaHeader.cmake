# GMA_CUDA_INCLUDE: the folder that holds cuda.h. Only the header is used; nothing is linked.
# Order: -DGMA_CUDA_INCLUDE, CUDA_HOME, CUDA_PATH, the usual places, nvcc on PATH, and last the
# nvidia-cuda-runtime wheel, which pip brings as a build requirement. With GMA_CUDA_HEADER=wheel in
# the environment only the wheel is asked (a test of that path on a machine with a toolkit).
set(toolkits)
if(NOT "$ENV{GMA_CUDA_HEADER}" STREQUAL "wheel")
    set(compiler "$ENV{CUDACXX}")
    cmake_path(GET compiler PARENT_PATH compiler_folder)
    find_program(GMA_NVCC nvcc
                 HINTS "${compiler_folder}" "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin"
                 PATHS /usr/local/cuda/bin /opt/cuda/bin)
    mark_as_advanced(GMA_NVCC)
    if(GMA_NVCC)
        file(REAL_PATH ${GMA_NVCC} nvcc_path)
        cmake_path(GET nvcc_path PARENT_PATH nvcc_folder)
        cmake_path(GET nvcc_folder PARENT_PATH nvcc_root)
    endif()
    set(toolkits "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda /opt/cuda "${nvcc_root}" /usr)
endif()

set(wheel_query [[
import glob, sys
for root in sys.path:
    for folder in glob.glob(root + '/nvidia/*/include'):
        print(folder)
]])
if(Python_EXECUTABLE)
    execute_process(COMMAND ${Python_EXECUTABLE} -c "${wheel_query}"
                    OUTPUT_VARIABLE wheel_folders ERROR_QUIET)
    string(REGEX REPLACE "\n" ";" wheel_folders "${wheel_folders}")
endif()

# An isolated build's wheel is gone at the next build: a folder without the header is looked up anew.
if(NOT EXISTS "${GMA_CUDA_INCLUDE}/cuda.h")
    unset(GMA_CUDA_INCLUDE CACHE)
endif()
find_path(GMA_CUDA_INCLUDE cuda.h
          HINTS ${toolkits} ${wheel_folders}
          PATH_SUFFIXES include targets/x86_64-linux/include targets/sbsa-linux/include
          NO_DEFAULT_PATH
          DOC "Folder that holds cuda.h")
if(NOT GMA_CUDA_INCLUDE)
    message(FATAL_ERROR
        "cuda.h was not found: set CUDA_HOME to a CUDA toolkit, or pip install nvidia-cuda-runtime.")
endif()
message(STATUS "cuda.h: ${GMA_CUDA_INCLUDE}")
