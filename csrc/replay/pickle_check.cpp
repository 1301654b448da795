#include "replay/pickle_check.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gma {
namespace {

constexpr std::uint8_t kMaxTupleDepth = 16;
constexpr std::uint64_t kMaxIntegerBytes = 16;
constexpr int kMaxProtocol = 5;

class Walk {
public:
    explicit Walk(std::string_view data) : data_(data) {}

    std::string run() {
        while (reason_.empty() && !stopped_) { step(static_cast<unsigned char>(number(1))); }
        return reason_;
    }

private:
    void step(unsigned code) {
        if (!reason_.empty() || scalar(code) || container(code) || memory(code)) { return; }
        static constexpr std::string_view kCalling = "ciRobPQ\x81\x82\x83\x84\x92\x93\x97\x98";
        const bool calls = kCalling.find(static_cast<char>(code)) != std::string_view::npos;
        refuse(calls ? "the pickle imports or calls something, and plain data does not"
                     : "damaged pickle: an instruction that plain data does not need");
    }

    // Instructions that push a number, a string or a constant.
    bool scalar(unsigned code) {
        switch (code) {
            case 'N':
            case 0x88:
            case 0x89:
                push(0);
                return true;
            case 'K':
                skip(1);
                push(0);
                return true;
            case 'M':
                skip(2);
                push(0);
                return true;
            case 'J':
                skip(4);
                push(0);
                return true;
            case 'G':
                skip(8);
                push(0);
                return true;
            case 0x8a:
                integer(number(1));
                return true;
            case 0x8b:
                integer(number(4));
                return true;
            case 'U':
            case 'C':
            case 0x8c:
                skip(number(1));
                push(0);
                return true;
            case 'T':
            case 'B':
            case 'X':
                skip(number(4));
                push(0);
                return true;
            case 0x8d:
            case 0x8e:
                skip(number(8));
                push(0);
                return true;
            default:
                return false;
        }
    }

    bool container(unsigned code) {
        switch (code) {
            case '(':
                marks_.push_back(stack_.size());
                return true;
            case ')':
            case ']':
            case '}':
                push(0);
                return true;
            case 'a':
                pop(1);
                return true;
            case 's':
                pop(2);
                return true;
            case 'e':
            case 'u':
                pop_mark();
                return true;
            case 'l':
            case 'd':
                pop_mark();
                push(0);
                return true;
            case 't':
                push_tuple(pop_mark());
                return true;
            case 0x85:
            case 0x86:
            case 0x87:
                push_tuple(pop(code - 0x84));
                return true;
            default:
                return false;
        }
    }

    bool memory(unsigned code) {
        switch (code) {
            case 0x80:
                protocol(number(1));
                return true;
            case 0x95:
                frame(number(8));
                return true;
            case '0':
                pop(1);
                return true;
            case '1':
                pop_mark();
                return true;
            case '2':
                push(top());
                return true;
            case 'h':
                recall(number(1));
                return true;
            case 'j':
                recall(number(4));
                return true;
            case 'q':
                remember(number(1));
                return true;
            case 'r':
                remember(number(4));
                return true;
            case 0x94:
                remember(memo_.size());
                return true;
            case '.':
                stopped_ = true;
                return true;
            default:
                return false;
        }
    }

    void refuse(const char* reason) {
        if (reason_.empty()) { reason_ = reason; }
    }

    // A little-endian number from the file.
    std::uint64_t number(std::size_t bytes) {
        if (data_.size() - at_ < bytes) {
            refuse("truncated pickle");
            at_ = data_.size();
            return 0;
        }
        std::uint64_t value = 0;
        for (std::size_t i = bytes; i-- > 0;) {
            value = value << 8 | static_cast<unsigned char>(data_[at_ + i]);
        }
        at_ += bytes;
        return value;
    }

    void skip(std::uint64_t bytes) {
        if (data_.size() - at_ < bytes) {
            refuse("truncated pickle");
            return;
        }
        at_ += bytes;
    }

    void integer(std::uint64_t bytes) {
        if (bytes > kMaxIntegerBytes) { refuse("damaged pickle: a number of more than 128 bits"); }
        skip(bytes);
        push(0);
    }

    void protocol(std::uint64_t version) {
        if (version > kMaxProtocol) { refuse("a pickle of a protocol that is not known"); }
    }

    void frame(std::uint64_t bytes) {
        if (bytes > data_.size() - at_) { refuse("truncated pickle"); }
    }

    // A value on the stack is known by how deeply tuples are nested in it.
    void push(std::uint8_t depth) { stack_.push_back(depth); }

    std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

    std::uint8_t top() {
        if (stack_.size() <= floor()) {
            refuse("damaged pickle: its stack runs empty");
            return 0;
        }
        return stack_.back();
    }

    // The greatest depth among what was popped.
    std::uint8_t pop(std::size_t count) {
        if (stack_.size() < floor() + count) {
            refuse("damaged pickle: its stack runs empty");
            return 0;
        }
        std::uint8_t depth = 0;
        for (; count > 0; --count) {
            depth = std::max(depth, stack_.back());
            stack_.pop_back();
        }
        return depth;
    }

    std::uint8_t pop_mark() {
        if (marks_.empty()) {
            refuse("damaged pickle: its stack runs empty");
            return 0;
        }
        const std::uint8_t depth = pop(stack_.size() - marks_.back());
        marks_.pop_back();
        return depth;
    }

    void push_tuple(std::uint8_t depth) {
        if (depth >= kMaxTupleDepth) { refuse("damaged pickle: tuples nested too deeply"); }
        push(static_cast<std::uint8_t>(depth + 1));
    }

    void recall(std::uint64_t index) {
        if (index >= memo_.size()) {
            refuse("damaged pickle: it recalls what it never stored");
            return;
        }
        push(memo_[index]);
    }

    void remember(std::uint64_t index) {
        if (index > memo_.size()) {
            refuse("damaged pickle: it stores values out of order");
            return;
        }
        if (index == memo_.size()) { memo_.push_back(0); }
        memo_[index] = top();
    }

    std::string_view data_;
    std::size_t at_ = 0;
    bool stopped_ = false;
    std::string reason_;
    std::vector<std::uint8_t> stack_;
    std::vector<std::size_t> marks_;
    std::vector<std::uint8_t> memo_;
};

}  // namespace

std::string check_pickle(std::string_view data) { return Walk(data).run(); }

}  // namespace gma
