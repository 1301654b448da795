#include "core/block.h"

#include "core/arena.h"
#include "core/segment.h"

namespace gma {

Stream Block::stream() const {
    return arena != nullptr ? arena->key().stream : segment->line->stream;
}

}  // namespace gma
