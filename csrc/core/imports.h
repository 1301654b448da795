// Memory of other processes, mapped here: an address range of exactly its size, one piece after the
// other. It is no part of any heap: not counted, not limited, never handed out.
#pragma once

#include <list>
#include <mutex>
#include <vector>

#include "core/allocator.h"

namespace gma {

class Imports {
public:
    explicit Imports(Driver& driver) : driver_(driver) {}
    ~Imports();
    Imports(const Imports&) = delete;
    Imports& operator=(const Imports&) = delete;

    Result<Address> add(int device, const std::vector<ExportedPiece>& pieces);
    Status drop(Address address);

private:
    struct Piece {
        Address address = 0;
        Bytes bytes = 0;
        Handle handle{};
        bool is_mapped = false;
        bool has_handle = false;  // only until it is mapped: the mapping keeps the memory
    };
    struct Import {
        int device = 0;
        Address address = 0;
        Bytes bytes = 0;
        std::vector<Piece> pieces;
    };

    Status fill(Import& import, const std::vector<ExportedPiece>& pieces);
    Status undo(Import& import);
    void retry_dropped();

    Driver& driver_;
    std::mutex mutex_;
    std::list<Import> imports_;
    std::list<Import> dropped_;  // to be undone yet: the driver refused, or a capture was under way
};

}  // namespace gma
