#include "core/block.h"

#include "core/arena.h"
#include "core/paged_strategy.h"
#include "core/segment.h"

namespace gma {

Stream Block::stream() const {
    if (borrower != nullptr) { return borrower->arena.key().stream; }
    return arena != nullptr ? arena->key().stream : segment->line->stream;
}

}  // namespace gma
