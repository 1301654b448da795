#include "core/out_of_memory.h"

#include "base/format.h"

namespace gma {

std::string out_of_memory_text(const OutOfMemoryReport& report) {
    const Bytes cached = report.reserved_bytes > report.live_bytes + report.pending_bytes
                             ? report.reserved_bytes - report.live_bytes - report.pending_bytes
                             : 0;
    std::string text = "CUDA out of memory. Tried to allocate " +
                       bytes_text(report.requested_bytes) + ". GPU " +
                       std::to_string(report.device) + " has a total capacity of " +
                       bytes_text(report.card_total_bytes) + " of which " +
                       bytes_text(report.card_free_bytes) + " is free.";
    if (report.limit_bytes < report.card_total_bytes) {
        text += " " + bytes_text(report.limit_bytes) + " allowed;";
    }
    text += " gpumem_alloc holds " + bytes_text(report.reserved_bytes) + ": " +
            bytes_text(report.live_bytes) + " is allocated by PyTorch";
    if (report.private_pool_bytes > 0) {
        text += " (" + bytes_text(report.private_pool_bytes) + " held by private pools)";
    }
    text += ", " + bytes_text(cached) + " is free (largest piece " +
            bytes_text(report.largest_free_bytes) + ")";
    if (report.pending_bytes > 0) {
        text += ", " + bytes_text(report.pending_bytes) + " is freed but may be in use by a stream";
    }
    return text + ". " + report.cause;
}

}  // namespace gma
