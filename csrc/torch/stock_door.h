// The C entry points for torch.cuda.memory.CUDAPluggableAllocator: malloc, free and its eight
// hooks. Torch gets their addresses from Python and checks nothing, so the types are stated here
// and compared with torch's own in stock_door.cpp and in the tests.
//
// gma_malloc throws torch.OutOfMemoryError, or std::runtime_error for other failures, since torch
// takes a null pointer for success. Nothing else throws: a free that throws would end the process.
// What those calls have to say is kept (door_errors.h) and told by Python.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#define GMA_EXPORT __attribute__((visibility("default")))

struct CUstream_st;

namespace gma {

using TorchStream = CUstream_st*;
using TorchPool = std::pair<unsigned long long, unsigned long long>;
using TorchFilter = std::function<bool(TorchStream)>;

using TorchAllocate = void*(std::size_t, int, TorchStream);
using TorchFree = void(void*, std::size_t, int, TorchStream);

}  // namespace gma

extern "C" {

GMA_EXPORT void* gma_malloc(std::size_t bytes, int device, gma::TorchStream stream);
GMA_EXPORT void gma_free(void* pointer, std::size_t bytes, int device, gma::TorchStream stream);

GMA_EXPORT void gma_init(int device_count);
GMA_EXPORT void gma_reset();  // torch.cuda.empty_cache()
GMA_EXPORT void gma_memory_fraction(double fraction, int device);
GMA_EXPORT void* gma_base_alloc(void* pointer, std::size_t* bytes);
GMA_EXPORT void gma_record_stream(void* pointer, gma::TorchStream stream);
GMA_EXPORT void gma_begin_allocate_to_pool(int device, gma::TorchPool pool,
                                           gma::TorchFilter filter);
GMA_EXPORT void gma_end_allocate_to_pool(int device, gma::TorchPool pool);
GMA_EXPORT void gma_release_pool(int device, gma::TorchPool pool);

}  // extern "C"
