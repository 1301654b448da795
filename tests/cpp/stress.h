// Random work on three streams while chunks move: every block is filled with a pattern of its own
// when it is handed out, and checked before it is freed, by kernels in stream order. The host never
// waits, so memory that is used again too early, or unmapped too soon, shows as mismatches.
//
// The card behind it is a GPU (tests/gpu) or the host driver (test_stress.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/allocator.h"

namespace gma::stress {

inline constexpr int kStreamCount = 3;

// What a card does in stream order. Word i of a block filled with `seed` is word_of(seed, i).
class Card {
public:
    virtual ~Card() = default;
    virtual Stream stream(int index) = 0;
    virtual void fill(Stream stream, Address address, Bytes bytes, std::uint32_t seed) = 0;
    virtual void check(Stream stream, Address address, Bytes bytes, std::uint32_t seed) = 0;
    virtual void wait_for(Stream waiter, Stream other) = 0;  // for all that is queued on `other`
    virtual void spin(Stream stream, int microseconds) = 0;
    virtual void progress() = 0;                  // the time that passes by itself on a GPU
    virtual std::uint64_t take_mismatches() = 0;  // waits for everything; counts from 0 again
};

struct Setup {
    std::uint64_t operation_count = 100'000;
    std::uint64_t seed = 1;
    Bytes limit_bytes = 512_MiB;
    Bytes largest_bytes = 48_MiB;
};

struct Outcome {
    std::uint64_t operations = 0;
    std::uint64_t detected_on_purpose = 0;  // a check with a wrong seed: must not be 0
    std::uint64_t mismatches = 0;
    std::uint64_t foreign_uses = 0;  // reads on a stream that is not the block's own
    std::uint64_t ooms = 0;
    Bytes reserved_at_end = 0;
    DeviceStatistics statistics;
};

class Stress {
public:
    Stress(Allocator& allocator, Card& card, const Setup& setup)
        : allocator_(allocator), card_(card), setup_(setup), random_(setup.seed) {}

    // Throws std::runtime_error with the allocator's own words if anything but out of memory fails.
    Outcome run() {
        prove_that_checks_fire();
        for (; outcome_.operations < setup_.operation_count; ++outcome_.operations) {
            if (outcome_.operations % kRegimeOperations == 0) { change_regime(); }
            one_operation();
            card_.progress();
        }
        while (!blocks_.empty()) { free_one(); }
        outcome_.mismatches = card_.take_mismatches();
        outcome_.statistics = allocator_.statistics(0);
        require(allocator_.trim(0).status());
        require(allocator_.audit());
        outcome_.reserved_at_end =
            static_cast<Bytes>(allocator_.statistics(0).reserved_bytes[0].current);
        return outcome_;
    }

private:
    struct Block {
        Address address = 0;
        Bytes bytes = 0;
        std::uint32_t seed = 0;
        int stream = 0;
    };
    static constexpr std::uint64_t kRegimeOperations = 1'000;
    static constexpr std::uint64_t kAuditOperations = 10'000;

    static void require(const Status& status) {
        if (!status.ok()) { throw std::runtime_error(status.message()); }
    }

    std::uint64_t below(std::uint64_t bound) {
        return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random_);
    }

    void prove_that_checks_fire() {
        const Address address = *allocated(4_KiB, 0);
        card_.fill(card_.stream(0), address, 4_KiB, 1);
        card_.check(card_.stream(0), address, 4_KiB, 2);
        outcome_.detected_on_purpose = card_.take_mismatches();
        require(allocator_.free(address));
    }

    // Sizes and the share of memory in use change from time to time, so that what one regime left
    // free lies in the wrong places for the next.
    void change_regime() {
        smallest_shift_ = 9 + static_cast<int>(below(12));
        live_target_ = setup_.limit_bytes / 100 * (50 + below(44));
        if (outcome_.operations % kAuditOperations == 0) { require(allocator_.audit()); }
    }

    Bytes random_size() {
        const auto shift = static_cast<unsigned>(smallest_shift_) + static_cast<unsigned>(below(6));
        const Bytes size = (1_B << shift) + below(1_B << shift);
        return std::min(size, setup_.largest_bytes);
    }

    void one_operation() {
        const std::uint64_t dice = below(100);
        if (dice < 70) {
            live_bytes_ < live_target_ ? allocate_one() : free_one();
        } else if (dice < 78) {
            free_one();
        } else if (dice < 92) {
            read_elsewhere();
        } else if (dice < 99) {
            card_.spin(random_stream(), 1 << below(10));
        } else {
            require(allocator_.trim(0, setup_.limit_bytes / 16).status());
        }
    }

    Stream random_stream() { return card_.stream(static_cast<int>(below(kStreamCount))); }

    Result<Address> allocated(Bytes bytes, int stream) {
        Result<Address> address = allocator_.allocate(0, bytes, card_.stream(stream));
        if (!address && address.status().code() != Code::OutOfMemory) { require(address.status()); }
        return address;
    }

    void allocate_one() {
        Block block{.bytes = random_size(),
                    .seed = static_cast<std::uint32_t>(random_()),
                    .stream = static_cast<int>(below(kStreamCount))};
        const Result<Address> address = allocated(block.bytes, block.stream);
        if (!address) {
            ++outcome_.ooms;
            for (std::size_t left = blocks_.size() / 4; left > 0; --left) { free_one(); }
            return;
        }
        block.address = *address;
        card_.fill(card_.stream(block.stream), block.address, block.bytes, block.seed);
        live_bytes_ += block.bytes;
        blocks_.push_back(block);
    }

    void free_one() {
        if (!blocks_.empty()) { free_at(below(blocks_.size())); }
    }

    void free_at(std::size_t index) {
        std::swap(blocks_[index], blocks_.back());
        const Block block = blocks_.back();
        blocks_.pop_back();
        live_bytes_ -= block.bytes;
        card_.check(card_.stream(block.stream), block.address, block.bytes, block.seed);
        require(allocator_.free(block.address));
    }

    // Another stream reads the block, often late and often after its free: its owner does not wait.
    void read_elsewhere() {
        if (blocks_.empty()) { return; }
        const std::size_t index = below(blocks_.size());
        const Block block = blocks_[index];
        const Stream reader = random_stream();
        if (reader == card_.stream(block.stream)) { return; }
        card_.wait_for(reader, card_.stream(block.stream));
        card_.spin(reader, 1 << below(9));
        card_.check(reader, block.address, block.bytes, block.seed);
        require(allocator_.record_stream(block.address, reader));
        ++outcome_.foreign_uses;
        if (below(2) == 0) { free_at(index); }
    }

    Allocator& allocator_;
    Card& card_;
    const Setup setup_;
    std::mt19937_64 random_;
    std::vector<Block> blocks_;
    Bytes live_bytes_ = 0;
    Bytes live_target_ = 0;
    int smallest_shift_ = 9;
    Outcome outcome_;
};

}  // namespace gma::stress
