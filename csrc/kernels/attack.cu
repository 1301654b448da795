// Kernels that touch memory that is not theirs, for verify-isolation. One block each.
#include "kernels/attack.h"

namespace {

using gma::AttackArguments;

__device__ std::uint64_t now_ns() {
    std::uint64_t now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ void spin(std::uint64_t ns) {
    const std::uint64_t start = now_ns();
    while (now_ns() - start < ns) { __nanosleep(1'000); }
}

__device__ volatile unsigned char* byte_at(const AttackArguments& arguments, std::uint64_t number) {
    return reinterpret_cast<volatile unsigned char*>(
        arguments.address + static_cast<std::uint64_t>(arguments.index) + number);
}

__device__ volatile std::uint32_t& element(const AttackArguments& arguments) {
    return reinterpret_cast<volatile std::uint32_t*>(arguments.address)[arguments.index];
}

}  // namespace

extern "C" __global__ void gma_attack_poke(AttackArguments arguments) {
    spin(arguments.spin_ns);
    for (std::uint64_t number = threadIdx.x; number < arguments.count; number += blockDim.x) {
        *byte_at(arguments, number) = static_cast<unsigned char>(arguments.value);
    }
}

extern "C" __global__ void gma_attack_peek(AttackArguments arguments) {
    spin(arguments.spin_ns);
    for (std::uint64_t number = threadIdx.x; number < arguments.count; number += blockDim.x) {
        arguments.output[number] = *byte_at(arguments, number);
    }
}

extern "C" __global__ void gma_attack_scatter(AttackArguments arguments) {
    spin(arguments.spin_ns);
    if (threadIdx.x == 0) { element(arguments) = arguments.value; }
}

extern "C" __global__ void gma_attack_gather(AttackArguments arguments) {
    spin(arguments.spin_ns);
    if (threadIdx.x == 0) {
        *reinterpret_cast<std::uint32_t*>(arguments.output) = element(arguments);
    }
}
