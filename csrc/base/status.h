// Errors are values that carry their evidence. Nothing in the core throws and nothing exits.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace gma {

enum class Code : std::uint8_t {
    Ok,
    OutOfMemory,    // the limit or the card is full; surfaces as torch.OutOfMemoryError
    InvalidValue,   // the caller's mistake: foreign pointer, double free, bad option
    NotSupported,   // the device or the state cannot do this (no virtual memory management, capture)
    DriverFailed,   // the driver refused for another reason; `driver_code` says which
    Forked,         // the process was forked after the allocator was made
};

class [[nodiscard]] Status {
public:
    Status() = default;  // Ok
    Status(Code code, std::string message, int driver_code = 0)
        : code_(code), driver_code_(driver_code), message_(std::move(message)) {}

    bool ok() const { return code_ == Code::Ok; }
    Code code() const { return code_; }
    int driver_code() const { return driver_code_; }
    const std::string& message() const { return message_; }

private:
    Code code_ = Code::Ok;
    int driver_code_ = 0;
    std::string message_;
};

// Either a value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(implicit)
    Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT(implicit)

    explicit operator bool() const { return state_.index() == 0; }
    T& operator*() { return std::get<0>(state_); }
    const T& operator*() const { return std::get<0>(state_); }
    T* operator->() { return &std::get<0>(state_); }
    const T* operator->() const { return &std::get<0>(state_); }
    Status status() const { return state_.index() == 0 ? Status() : std::get<1>(state_); }

private:
    std::variant<T, Status> state_;
};

}  // namespace gma
