// Errors are values that carry their evidence. Nothing in the core throws and nothing exits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace gma {

enum class Code : std::uint8_t {
    Ok,
    OutOfMemory,   // the limit or the card is full; surfaces as torch.OutOfMemoryError
    InvalidValue,  // the caller's mistake: foreign pointer, double free, bad option
    NotSupported,  // the device or the state cannot do this (no virtual memory management, capture)
    DriverFailed,  // the driver refused for another reason; `driver_code` says which
    Forked,        // the process was forked after the allocator was made
};

// One word: success costs neither memory nor a destructor's work on the paths that take
// nanoseconds.
class [[nodiscard]] Status {
public:
    Status() = default;  // Ok
    Status(Code code, std::string message, int driver_code = 0)
        : failure_(std::make_unique<Failure>(Failure{code, driver_code, std::move(message)})) {}
    Status(const Status& other)
        : failure_(other.failure_ ? std::make_unique<Failure>(*other.failure_) : nullptr) {}
    Status(Status&&) noexcept = default;
    Status& operator=(const Status& other) {
        failure_ = other.failure_ ? std::make_unique<Failure>(*other.failure_) : nullptr;
        return *this;
    }
    Status& operator=(Status&&) noexcept = default;
    ~Status() = default;

    bool ok() const { return failure_ == nullptr; }
    Code code() const { return ok() ? Code::Ok : failure_->code; }
    int driver_code() const { return ok() ? 0 : failure_->driver_code; }
    const std::string& message() const {
        static const std::string none;
        return ok() ? none : failure_->message;
    }

private:
    struct Failure {
        Code code;
        int driver_code;
        std::string message;
    };
    std::unique_ptr<Failure> failure_;
};

// Either a value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
    Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

    explicit operator bool() const { return status_.ok(); }
    T& operator*() { return value_; }
    const T& operator*() const { return value_; }
    T* operator->() { return &value_; }
    const T* operator->() const { return &value_; }
    const Status& status() const { return status_; }

private:
    T value_{};
    Status status_;
};

}  // namespace gma
