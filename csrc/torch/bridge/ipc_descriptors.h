// How a receiver gets the sender's file descriptors: it duplicates them out of the sender's table
// (pidfd_getfd), where the system lets it, or they were brought to it beforehand.
#pragma once

#include <string>
#include <vector>

#include "torch/bridge/ipc_handle.h"

namespace gma::bridge {

// Owns one.
class Descriptor {
public:
    explicit Descriptor(int number = -1) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept;
    Descriptor& operator=(Descriptor&& other) noexcept;
    ~Descriptor();

    int number() const { return number_; }

private:
    int number_;
};

// Whether another process of this user may duplicate ours: false under seccomp rules as containers
// have them, and under Yama's restriction of ptrace. Asked once.
bool can_be_fetched();

// Descriptors in this process for the pieces of `handle`, brought by other means; they are closed
// when they are used or withdrawn.
void bring(const std::string& handle, std::vector<Descriptor> descriptors);
void withdraw(const std::string& handle);

// One for each piece, in order. Throws c10::Error when the sender is gone or the system refuses.
std::vector<Descriptor> descriptors_for(const std::string& handle, const SharedMemory& memory);

}  // namespace gma::bridge
