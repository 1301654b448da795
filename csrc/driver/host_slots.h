// A table of things under numbers that are never used twice, so that a stale number is noticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace gma {

// A number is generation << 32 | slot + 1: never 0. The generation counts the uses of the slot.
template <class T>
class HostSlots {
public:
    std::uint64_t insert(T value) {
        if (free_.empty()) {
            free_.push_back(static_cast<std::uint32_t>(slots_.size()));
            slots_.emplace_back();
        }
        const std::uint32_t index = free_.back();
        free_.pop_back();
        slots_[index].value.emplace(std::move(value));
        return (slots_[index].generation << 32) | (index + 1ULL);
    }

    // nullptr if nothing lives under this number (any more).
    T* find(std::uint64_t number) {
        const std::uint64_t index = (number & 0xffff'ffff) - 1;
        if (index >= slots_.size() || slots_[index].generation != number >> 32 ||
            !slots_[index].value) {
            return nullptr;
        }
        return &*slots_[index].value;
    }

    void erase(std::uint64_t number) {
        Slot& slot = slots_[(number & 0xffff'ffff) - 1];
        slot.value.reset();
        ++slot.generation;
        free_.push_back(static_cast<std::uint32_t>((number & 0xffff'ffff) - 1));
    }

    std::size_t size() const { return slots_.size() - free_.size(); }

private:
    struct Slot {
        std::uint64_t generation = 0;
        std::optional<T> value;
    };
    std::vector<Slot> slots_;
    std::vector<std::uint32_t> free_;
};

}  // namespace gma
