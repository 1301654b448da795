// The file descriptors that stand for exported memory, of all devices. A child of fork() inherits
// them, and as long as it has them the memory cannot go back to the card: so it closes them first.
#pragma once

namespace gma {

void note_exported(int descriptor) noexcept;
// Closes it, once: not again in a child of fork(), where its number may mean another file by now.
void close_exported(int descriptor) noexcept;

}  // namespace gma
