#include "card.h"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "pattern_word.h"

namespace gma::stress {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 1024;

void require(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
    }
}

__global__ void fill_kernel(std::uint32_t* words, std::uint64_t count, std::uint32_t seed) {
    const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
    for (std::uint64_t at = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count;
         at += step) {
        words[at] = word_of(seed, at);
    }
}

__global__ void check_kernel(const std::uint32_t* words, std::uint64_t count, std::uint32_t seed,
                             unsigned long long* mismatches) {
    const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
    unsigned long long found = 0;
    for (std::uint64_t at = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count;
         at += step) {
        found += words[at] == word_of(seed, at) ? 0 : 1;
    }
    if (found != 0) { atomicAdd(mismatches, found); }
}

__global__ void spin_kernel(long long microseconds) {
    for (long long left = microseconds; left > 0; --left) { __nanosleep(1000); }
}

int grid_of(std::uint64_t count) {
    const std::uint64_t wanted = (count + kThreads - 1) / kThreads;
    return static_cast<int>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
}

}  // namespace

struct GpuCard::State {
    std::vector<cudaStream_t> streams;
    cudaEvent_t event = nullptr;
    unsigned long long* mismatches = nullptr;
};

GpuCard::GpuCard(int stream_count) : state_(std::make_unique<State>()) {
    for (int index = 0; index < stream_count; ++index) {
        cudaStream_t stream = nullptr;
        require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
        state_->streams.push_back(stream);
    }
    require(cudaEventCreateWithFlags(&state_->event, cudaEventDisableTiming), "cudaEventCreate");
    require(cudaMalloc(&state_->mismatches, sizeof *state_->mismatches), "cudaMalloc");
    require(cudaMemset(state_->mismatches, 0, sizeof *state_->mismatches), "cudaMemset");
    require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// The process ends with it: nothing is given back one by one.
GpuCard::~GpuCard() = default;

void* GpuCard::stream(int index) const { return state_->streams[static_cast<std::size_t>(index)]; }

void GpuCard::fill(void* stream, std::uint64_t address, std::uint64_t bytes, std::uint32_t seed) {
    const std::uint64_t count = bytes / sizeof(std::uint32_t);
    fill_kernel<<<grid_of(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        reinterpret_cast<std::uint32_t*>(address), count, seed);
    require(cudaGetLastError(), "fill");
}

void GpuCard::check(void* stream, std::uint64_t address, std::uint64_t bytes, std::uint32_t seed) {
    const std::uint64_t count = bytes / sizeof(std::uint32_t);
    check_kernel<<<grid_of(count), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        reinterpret_cast<const std::uint32_t*>(address), count, seed, state_->mismatches);
    require(cudaGetLastError(), "check");
}

void GpuCard::wait_for(void* waiter, void* other) {
    require(cudaEventRecord(state_->event, static_cast<cudaStream_t>(other)), "cudaEventRecord");
    require(cudaStreamWaitEvent(static_cast<cudaStream_t>(waiter), state_->event, 0),
            "cudaStreamWaitEvent");
}

void GpuCard::spin(void* stream, int microseconds) {
    spin_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(microseconds);
    require(cudaGetLastError(), "spin");
}

std::uint64_t GpuCard::take_mismatches() {
    require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    unsigned long long found = 0;
    require(cudaMemcpy(&found, state_->mismatches, sizeof found, cudaMemcpyDeviceToHost),
            "cudaMemcpy");
    require(cudaMemset(state_->mismatches, 0, sizeof found), "cudaMemset");
    require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return found;
}

}  // namespace gma::stress
