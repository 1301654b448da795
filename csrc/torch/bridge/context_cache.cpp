#include <Python.h>

#include "torch/bridge/context_cache.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "torch/bridge/torch_frames.h"

namespace gma::bridge {
namespace {

using Context = std::shared_ptr<c10::GatheredContext>;
using Gather = c10::CachingDeviceAllocator::CreateContextFn;

// The Python frames of this thread, innermost first: what a context without C++ and TorchScript
// frames consists of. The code objects are borrowed, the frames that run them have them.
class Stack {
public:
    Stack() {
        PyFrameObject* frame = PyEval_GetFrame();
        Py_XINCREF(frame);
        while (frame != nullptr && count_ < kMost) {
            PyCodeObject* const code = PyFrame_GetCode(frame);
            frames_[count_++] = {code, PyFrame_GetLasti(frame)};
            Py_DECREF(code);
            PyFrameObject* const outer = PyFrame_GetBack(frame);
            Py_DECREF(frame);
            frame = outer;
        }
        is_whole_ = frame == nullptr;
        Py_XDECREF(frame);
    }
    bool is_whole() const { return is_whole_ && count_ > 0; }
    std::size_t hash() const { return hash_of(frames_.data(), count_); }
    bool equals(const std::vector<PythonFrame>& others) const {
        if (others.size() != count_) { return false; }
        for (std::size_t i = 0; i < count_; ++i) {
            if (others[i].code != frames_[i].code || others[i].lasti != frames_[i].lasti) {
                return false;
            }
        }
        return true;
    }
    static std::size_t hash_of(const PythonFrame* frames, std::size_t count) {
        std::size_t hash = count;
        for (std::size_t i = 0; i < count; ++i) {
            const auto code = reinterpret_cast<std::uintptr_t>(frames[i].code);
            hash = (hash ^ code ^ (static_cast<std::size_t>(frames[i].lasti) << 32U)) * kMultiplier;
            hash ^= hash >> 29U;
        }
        return hash;
    }

private:
    static constexpr std::size_t kMost = 128;
    static constexpr std::size_t kMultiplier = 0x9E37'79B9'7F4A'7C15;

    std::array<PythonFrame, kMost> frames_;  // of which `count_` are written
    std::size_t count_ = 0;
    bool is_whole_ = false;
};

// Used with Python's lock held, and so by one thread at a time. A context keeps its code objects
// alive: one that has the same address is the same.
class ContextCache {
public:
    Context get(Gather gather);
    void clear();

    std::atomic<std::uint64_t> wanted_generation{0};

private:
    static constexpr std::size_t kSlotCount = 1024;
    static constexpr int kMostTrust = 8;

    Context& slot(std::size_t hash) { return slots_[hash % kSlotCount]; }
    void keep(const Context& context);

    std::array<Context, kSlotCount> slots_;  // each null or one with Python frames only
    Gather made_by_ = nullptr;
    std::uint64_t generation_ = 0;
    // Falls with each stack that is not here. At 0 looking first does not pay: a context is
    // gathered, and shows whether it would have been here.
    int trust_ = kMostTrust / 2;
};

ContextCache& cache() {
    static auto* const kCache = new ContextCache;  // never destroyed: a context's end needs torch
    return *kCache;
}

void ContextCache::clear() {
    for (Context& context : slots_) { context.reset(); }
    trust_ = kMostTrust / 2;
}

Context ContextCache::get(Gather gather) {
    const std::uint64_t wanted = wanted_generation.load(std::memory_order_acquire);
    if (generation_ != wanted || made_by_ != gather) [[unlikely]] {
        clear();
        generation_ = wanted;
        made_by_ = gather;
    }
    if (trust_ > 0) {
        const Stack stack;
        if (stack.is_whole()) {
            const Context& kept = slot(stack.hash());
            if (kept != nullptr && stack.equals(python_frames_of(*kept))) {
                trust_ = std::min(trust_ + 1, kMostTrust);
                return kept;
            }
        }
        --trust_;
    }
    Context context = gather();
    if (context != nullptr && has_only_python_frames(*context)) { keep(context); }
    return context;
}

void ContextCache::keep(const Context& context) {
    const auto& frames = python_frames_of(*context);
    const std::size_t hash = Stack::hash_of(frames.data(), frames.size());
    Context& kept = slot(hash);
    if (trust_ == 0 && kept != nullptr) {
        const auto& others = python_frames_of(*kept);
        if (others.size() == frames.size() &&
            Stack::hash_of(others.data(), others.size()) == hash) {
            ++trust_;
        }
    }
    kept = context;
}

// Null where the thread may not ask for Python's lock: torch's own rule.
PyThreadState* python_state() {
    return Py_IsInitialized() != 0 ? PyGILState_GetThisThreadState() : nullptr;
}

// PyGILState_Check() says yes to everybody once there was a second interpreter.
bool has_python_lock(const PyThreadState* state) {
    return state != nullptr && state == PyThreadState_GetUnchecked();
}

// What a context holds beside Python's frames: TorchScript's, and where the forward pass was.
bool only_python_runs() {
    return !torch::autograd::get_current_node() && torch::jit::currentCallstack().empty();
}

class PythonLock {
public:
    PythonLock() : state_(PyGILState_Ensure()) {}
    ~PythonLock() { PyGILState_Release(state_); }
    PythonLock(const PythonLock&) = delete;
    PythonLock& operator=(const PythonLock&) = delete;

private:
    PyGILState_STATE state_;
};

}  // namespace

std::shared_ptr<c10::GatheredContext> gather_or_reuse(Gather gather) {
    if (!kFramesAreKnown || !only_python_runs()) { return gather(); }
    const PyThreadState* const state = python_state();
    if (state == nullptr) { return gather(); }
    if (has_python_lock(state)) [[likely]] { return cache().get(gather); }
    const PythonLock lock;
    return cache().get(gather);
}

void forget_contexts() {
    if (!kFramesAreKnown) { return; }
    cache().wanted_generation.fetch_add(1, std::memory_order_release);
    if (has_python_lock(python_state())) { cache().clear(); }
}

}  // namespace gma::bridge
