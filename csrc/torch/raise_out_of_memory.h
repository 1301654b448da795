// Raises torch.OutOfMemoryError from a library that is not linked to torch: the class is looked up
// in the libraries that the process has loaded.
#pragma once

#include <cstdint>
#include <string>

namespace gma {

enum class RaisePath : std::uint8_t {
    Automatic,     // the first of the others that works
    Constructor,   // torch 2.13 and later export OutOfMemoryError's own constructor
    BaseAndTable,  // before that: build its base class, then give it OutOfMemoryError's table
    BadAlloc,      // no torch, or an unknown one: std::bad_alloc
};

// Tests choose a path; what it lacks falls through to the next.
void set_raise_path(RaisePath path);
[[noreturn]] void raise_out_of_memory(const std::string& message);

}  // namespace gma
