// From an address to its arena with one load: arenas begin and end on multiples of 4 GiB.
#pragma once

#include <atomic>

#include "core/arena.h"
#include "core/lazy_array.h"

namespace gma {

class AddressMap {
public:
    // 48 bits: what the user half of a process's address space needs on x86-64 and aarch64.
    static constexpr Address kEndAddress = 1ULL << 48;

    AddressMap() : arenas_(kEndAddress / Arena::kAlignmentBytes) {}

    bool valid() const { return arenas_.valid(); }
    // Lock-free; nullptr for addresses that are not in an arena.
    Arena* find(Address address) {
        if (address >= kEndAddress) { return nullptr; }
        return std::atomic_ref(arenas_[address / Arena::kAlignmentBytes])
            .load(std::memory_order_acquire);
    }
    void set(Address base, Bytes bytes, Arena* arena) {
        for (Address at = base; at < base + bytes; at += Arena::kAlignmentBytes) {
            std::atomic_ref(arenas_[at / Arena::kAlignmentBytes])
                .store(arena, std::memory_order_release);
        }
    }

private:
    LazyArray<Arena*> arenas_;
};

}  // namespace gma
