#include "torch/bridge/ipc_descriptors.h"

#include <c10/util/Exception.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>

namespace gma::bridge {
namespace {

// Numbers for headers that are older than the kernel; the same on all machines.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

Descriptor open_process(std::int32_t pid) {
    return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}
Descriptor duplicate(const Descriptor& process, int number) {
    return Descriptor(static_cast<int>(::syscall(SYS_pidfd_getfd, process.number(), number, 0)));
}

struct Brought {
    std::mutex mutex;
    std::map<std::string, std::vector<Descriptor>> by_handle;
};
Brought& brought() {
    static auto* const kBrought = new Brought();
    return *kBrought;
}

[[noreturn]] void sender_is_gone(std::int32_t pid) {
    TORCH_CHECK(false, "gpumem_alloc: process ", pid,
                ", which sent this CUDA tensor, has ended.\n"
                "Its memory could be mapped only while it ran.\n"
                "Keep the sender alive until its tensors were received, or send CPU tensors.");
}

[[noreturn]] void fetching_refused(std::int32_t pid, int error) {
    TORCH_CHECK(false, "gpumem_alloc: the file descriptors of process ", pid,
                ", which sent this CUDA tensor, could not be taken over: ", std::strerror(error),
                ".\nThe system lets a process do so (pidfd_getfd) with processes of the same user "
                "that it may trace; containers and kernel.yama.ptrace_scope restrict that.\n"
                "Send through torch.multiprocessing, which needs no such right; or allow it: "
                "docker run --cap-add=SYS_PTRACE, or prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY) in "
                "the sender.");
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
}
Descriptor::~Descriptor() {
    if (number_ >= 0) { ::close(number_); }
}

bool can_be_fetched() {
    static const bool kCan = [] {
        std::ifstream yama("/proc/sys/kernel/yama/ptrace_scope");
        int scope = 0;
        if (yama >> scope && scope != 0) { return false; }
        const Descriptor self = open_process(static_cast<std::int32_t>(::getpid()));
        return self.number() >= 0 && duplicate(self, self.number()).number() >= 0;
    }();
    return kCan;
}

void bring(const std::string& handle, std::vector<Descriptor> descriptors) {
    const std::lock_guard guard(brought().mutex);
    brought().by_handle[handle] = std::move(descriptors);
}

void withdraw(const std::string& handle) {
    const std::lock_guard guard(brought().mutex);
    brought().by_handle.erase(handle);
}

std::vector<Descriptor> descriptors_for(const std::string& handle, const SharedMemory& memory) {
    {
        const std::lock_guard guard(brought().mutex);
        auto node = brought().by_handle.extract(handle);
        if (!node.empty()) { return std::move(node.mapped()); }
    }
    const ProcessIdentity& sender = memory.sender;
    TORCH_CHECK(sender.name_space == this_process().name_space, "gpumem_alloc: process ",
                sender.pid,
                ", which sent this CUDA tensor, runs in another container.\n"
                "Process numbers do not mean the same there and here.\n"
                "Run both in one container, or with one PID namespace (docker run --pid=...).");
    const Descriptor process = open_process(sender.pid);
    if (process.number() < 0) {
        const int error = errno;
        error == ESRCH ? sender_is_gone(sender.pid) : fetching_refused(sender.pid, error);
    }
    if (start_of(sender.pid) != sender.started) { sender_is_gone(sender.pid); }
    std::vector<Descriptor> descriptors;
    for (const ExportedPiece& piece : memory.pieces) {
        descriptors.push_back(duplicate(process, piece.descriptor));
        if (descriptors.back().number() < 0) { fetching_refused(sender.pid, errno); }
    }
    return descriptors;
}

}  // namespace gma::bridge
