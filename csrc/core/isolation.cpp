#include "core/isolation.h"

#include <array>

#include "base/format.h"

namespace gma {
namespace {

constexpr std::array<const char*, 5> kLevels = {"off", "stream", "packed", "tensor", "strict"};
constexpr std::array<const char*, 5> kKinds = {"overrun", "underrun", "write after free",
                                               "double free", "foreign pointer"};

std::string tensor_text(const LedgerEntry& tensor) {
    std::string text = bytes_text(tensor.requested_bytes) + " at " + hex_text(tensor.address) +
                       " (allocation " + std::to_string(tensor.allocation_number) + ", stream " +
                       hex_text(reinterpret_cast<std::uintptr_t>(tensor.stream));
    if (tensor.free_number > 0) { text += ", free " + std::to_string(tensor.free_number); }
    return text + ")";
}

// How far a bad byte is from the tensor.
std::string place_text(const Violation& violation) {
    const LedgerEntry& tensor = violation.tensor;
    const Address end = tensor.address + tensor.requested_bytes;
    if (violation.first_bad >= end) {
        return bytes_text(violation.first_bad - end) + " behind its end";
    }
    if (violation.first_bad >= tensor.address) {
        return bytes_text(violation.first_bad - tensor.address) + " into it";
    }
    return bytes_text(tensor.address - violation.first_bad) + " in front of it";
}

std::string found_text(const Violation& violation) {
    std::string text = bytes_text(violation.bad_bytes) + " that nobody may write, the first ";
    text += place_text(violation) + " at " + hex_text(violation.first_bad) + ", hold";
    for (unsigned char byte : violation.found) {
        text += (byte < 16 ? " 0" : " ") + hex_text(byte).substr(2);
    }
    return text + ".";
}

}  // namespace

Isolation isolation_named(std::string_view name) {
    for (std::size_t i = 0; i < kLevels.size(); ++i) {
        if (name == kLevels[i]) { return static_cast<Isolation>(i); }
    }
    return Isolation::Off;
}

Isolation isolation_of(const Options& options) { return isolation_named(options.isolation); }

const char* name_of(Isolation level) { return kLevels[static_cast<std::size_t>(level)]; }

const char* name_of(Violation::Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

std::string no_mapping_text(int device) {
    return "isolation needs virtual memory management, which device " + std::to_string(device) +
           " does not have.\nGuards and memory of one's own are made by mapping it, and nothing "
           "else would isolate.\nHide the device (CUDA_VISIBLE_DEVICES), or run without isolation.";
}

std::string no_way_out_text(Isolation level, bool in_region) {
    const std::string otherwise = in_region ? "make what is sent outside gpumem_alloc.isolated()"
                                            : "run the program without isolation";
    return std::string("isolation:") + name_of(level) +
           " lets no memory out of the process: this CUDA tensor cannot be sent.\n"
           "Memory of the no-sharing mode has no handle that another process could open.\n"
           "Send a CPU tensor, as tensor.cpu() makes one, or " +
           otherwise + ".";
}

std::string violation_text(const Violation& violation) {
    const std::string tensor = tensor_text(violation.tensor);
    switch (violation.kind) {
        case Violation::Kind::DoubleFree:
            return "gpumem_alloc: double free of a tensor of " + tensor + ".\n" +
                   "It was freed before, as free " + std::to_string(violation.tensor.free_number) +
                   " of the device, and again now.\n" +
                   "Look for two owners of its pointer: the second one must not free it.";
        case Violation::Kind::ForeignPointer:
            return "gpumem_alloc: free of " + hex_text(violation.first_bad) +
                   ", where no tensor was allocated.\nIt is not the start of a tensor, or the "
                   "tensor was freed so long ago that it is forgotten.\nFree the pointer that the "
                   "allocation returned, once.";
        case Violation::Kind::WriteAfterFree:
            return "gpumem_alloc: write after free into what was a tensor of " + tensor + ".\n" +
                   found_text(violation) +
                   "\nLook for a pointer to it that outlived it, or for a stream that used it "
                   "without record_stream().";
        case Violation::Kind::Overrun:
        case Violation::Kind::Underrun:
            break;
    }
    return std::string("gpumem_alloc: ") + name_of(violation.kind) + " of a tensor of " + tensor +
           ".\n" + found_text(violation) +
           "\nLook at the bounds of the kernels that write it; isolation:strict and "
           "guard_alignment:16 make such a write fault where it happens.";
}

}  // namespace gma
