// An array of zeros that costs memory only where it was touched: one entry per page or granule of
// a large address range, most of which is never used.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <type_traits>
#include <utility>

namespace gma {

template <class T>
class LazyArray {
    static_assert(std::is_trivially_copyable_v<T>, "zeroed pages must be valid entries");

public:
    explicit LazyArray(std::size_t count) : byte_count_(count * sizeof(T)) {
        void* memory = mmap(nullptr, byte_count_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        data_ = memory == MAP_FAILED ? nullptr : static_cast<T*>(memory);
    }
    LazyArray(LazyArray&& other) noexcept
        : byte_count_(other.byte_count_), data_(std::exchange(other.data_, nullptr)) {}
    LazyArray(const LazyArray&) = delete;
    LazyArray& operator=(const LazyArray&) = delete;
    LazyArray& operator=(LazyArray&&) = delete;
    ~LazyArray() {
        if (data_ != nullptr) { munmap(data_, byte_count_); }
    }

    bool valid() const { return data_ != nullptr; }
    T& operator[](std::size_t index) { return data_[index]; }
    const T& operator[](std::size_t index) const { return data_[index]; }

private:
    std::size_t byte_count_;
    T* data_;
};

}  // namespace gma
