// A GPU through the CUDA runtime, for the stress test. card.cu is the only file nvcc compiles, and
// it includes nothing of the allocator.
#pragma once

#include <cstdint>
#include <memory>

namespace gma::stress {

class GpuCard {
public:
    // Throws std::runtime_error, as all functions here, if CUDA refuses.
    explicit GpuCard(int stream_count);
    ~GpuCard();

    void* stream(int index) const;
    void fill(void* stream, std::uint64_t address, std::uint64_t bytes, std::uint32_t seed);
    void check(void* stream, std::uint64_t address, std::uint64_t bytes, std::uint32_t seed);
    void wait_for(void* waiter, void* other);
    void spin(void* stream, int microseconds);
    std::uint64_t take_mismatches();

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace gma::stress
