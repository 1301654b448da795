// The frames inside torch's contexts, which are private there. A torch that has other members still
// compiles, with kFramesAreKnown false.
#pragma once

#include <Python.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace gma::bridge {

using PythonFrame = torch::CapturedTraceback::PyFrame;

namespace frames {

// All that is known of a context: one of another size has something that was not looked at.
struct Expected : c10::GatheredContext {
    std::vector<PythonFrame> frames_;
    std::vector<void*> cpp_frames_;
    std::vector<torch::jit::StackEntry> script_frames_;
    void* python_ = nullptr;
    std::optional<std::vector<std::string>> forward_traceback_;
};

// Whether a class has members of these names, private ones too: with another of each name beside
// it, a name is ambiguous.
struct Names {
    int frames_;
    int cpp_frames_;
};
template <class Class>
struct WithNames : Class, Names {};
template <class Class>
concept HasFrames =
    !requires { &WithNames<Class>::frames_; } && !requires { &WithNames<Class>::cpp_frames_; };

inline constexpr bool kAreThere =
    HasFrames<torch::CapturedTraceback> && sizeof(torch::CapturedTraceback) == sizeof(Expected);
using Traceback = std::conditional_t<kAreThere, torch::CapturedTraceback, Expected>;

// An explicit instantiation may name what is private, and leaves its address with a friend.
struct Python {
    friend constexpr auto member(Python);
};
struct Cpp {
    friend constexpr auto member(Cpp);
};
template <class Which, auto Member>
struct Reveal {
    friend constexpr auto member(Which) { return Member; }
};
template struct Reveal<Python, &Traceback::frames_>;
template struct Reveal<Cpp, &Traceback::cpp_frames_>;

}  // namespace frames

#ifdef Py_GIL_DISABLED  // frames are walked and contexts kept under Python's lock
inline constexpr bool kFramesAreKnown = false;
#else
inline constexpr bool kFramesAreKnown = frames::kAreThere;
#endif

// Of one for which has_only_python_frames() held, also if its frames were taken from it since.
inline const std::vector<PythonFrame>& python_frames_of(const c10::GatheredContext& context) {
    return static_cast<const frames::Traceback&>(context).*member(frames::Python{});
}

// Of one that was gathered where no TorchScript runs.
inline bool has_only_python_frames(const c10::GatheredContext& context) {
    if (typeid(context) != typeid(frames::Traceback)) { return false; }
    const auto& cpp = static_cast<const frames::Traceback&>(context).*member(frames::Cpp{});
    return cpp.empty() && !python_frames_of(context).empty();
}

}  // namespace gma::bridge
