// Walks a pickle without running it, and says why it must not be loaded.
//
// A pickle is a program for a stack machine, and a trace is a file that people send each other.
// Plain data (dicts, lists, tuples, strings, numbers, None) needs no instruction that imports or
// calls. This also refuses what would make the loader itself fall over: lengths beyond the file, a
// memo index far beyond what was stored (the loader allocates up to it), deeply nested tuples
// (their hash recurses), a stack that runs empty.
#pragma once

#include <string>
#include <string_view>

namespace gma {

// Empty if the pickle is plain data; else the reason, without an end of sentence.
std::string check_pickle(std::string_view data);

}  // namespace gma
