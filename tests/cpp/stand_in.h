// The driver on a card, or on the stand-in machine of tests/rig, which runs in a process of its
// own.
#pragma once

#include <dlfcn.h>
#include <doctest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "child_process.h"
#include "driver/cuda_driver.h"
#include "driver_conformance.h"

namespace gma {

// A function of the libcuda.so.1 of this process; nullptr if it has none of that name. This test
// knows the few it needs by hand, so that only the driver itself is compiled with cuda.h.
template <class Function>
Function* cuda_function(const char* name) {
    void* library = ::dlopen("libcuda.so.1", RTLD_LAZY);
    return library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, name));
}

inline bool has_card() { return static_cast<bool>(make_cuda_driver()); }

// The stand-in's functions for tests exist only there.
inline bool on_stand_in() {
    return ::dlsym(RTLD_DEFAULT, "rig_call_count") != nullptr ||
           cuda_function<void>("rig_call_count") != nullptr;
}

// What a real card needs and the stand-in has not: copies, streams, a context for both.
class Card {
public:
    Card() : driver_(require_value_of(make_cuda_driver())) {
        // The first use of the device makes its context; then this thread may use it too.
        require_value(driver_->card_memory(0));
        if (auto* retain = cuda_function<int(void**, int)>("cuDevicePrimaryCtxRetain")) {
            REQUIRE(retain(&context_, 0) == 0);
        }
        make_current();
    }

    Driver& driver() { return *driver_; }

    void make_current() {
        if (auto* set_current = cuda_function<int(void*)>("cuCtxSetCurrent")) {
            REQUIRE(set_current(context_) == 0);
        }
    }

    Stream stream(std::uintptr_t number) {
        auto* create = cuda_function<int(void**, unsigned)>("cuStreamCreate");
        void* made = reinterpret_cast<void*>(0x10000 * number);
        REQUIRE((create == nullptr || create(&made, 1) == 0));
        return made;
    }

    static void fill(Address address, unsigned char value, Bytes bytes) {
        auto* set = cuda_function<int(Address, unsigned char, std::size_t)>("cuMemsetD8_v2");
        auto* synchronize = cuda_function<int()>("cuCtxSynchronize");
        if (set == nullptr) {
            std::memset(reinterpret_cast<void*>(address), value, bytes);
        } else {
            REQUIRE(set(address, value, bytes) == 0);
            REQUIRE(synchronize() == 0);
        }
    }

    static int read_byte(Address address) {
        auto* copy = cuda_function<int(void*, Address, std::size_t)>("cuMemcpyDtoH_v2");
        unsigned char byte = 0;
        if (copy == nullptr) {
            std::memcpy(&byte, reinterpret_cast<const void*>(address), 1);
        } else {
            REQUIRE(copy(&byte, address, 1) == 0);
        }
        return byte;
    }

    DriverAccess access() {
        return {.driver = *driver_,
                .device = 0,
                .fill = fill,
                .read_byte = read_byte,
                .first_stream = stream(1),
                .second_stream = stream(2),
                .is_strict = on_stand_in()};
    }

private:
    static std::unique_ptr<Driver> require_value_of(Result<std::unique_ptr<Driver>> driver) {
        REQUIRE_MESSAGE(driver, driver.status().message());
        return std::move(*driver);
    }

    std::unique_ptr<Driver> driver_;
    void* context_ = nullptr;
};

inline const std::string& stand_in_folder() {
    static const std::string folder = [] {
        const auto script =
            std::filesystem::path(__FILE__).parent_path().parent_path() / "rig" / "build.py";
        ChildResult built = run_shell("${PYTHON:-python3} '" + script.string() + "'");
        REQUIRE_MESSAGE(built.exit_code == 0, built.output);
        built.output.erase(built.output.find_last_not_of('\n') + 1);
        return built.output;
    }();
    return folder;
}

// Runs those test cases of this program there, and makes sure that they are as many as expected.
// (No comma in their names: to doctest it separates patterns.)
inline void check_on_stand_in(const std::string& test_cases, const std::string& environment,
                              long expected_count) {
    const ChildResult child = run_self("LD_LIBRARY_PATH='" + stand_in_folder() + "' " + environment,
                                       "--no-colors --test-case=" + test_cases);
    CHECK_MESSAGE(child.exit_code == 0, child.output);
    const std::string heading = "test cases:";
    const std::size_t at = child.output.find(heading);
    REQUIRE_MESSAGE(at != std::string::npos, child.output);
    const long count = std::strtol(child.output.c_str() + at + heading.size(), nullptr, 10);
    CHECK_MESSAGE(count == expected_count, child.output);
}

using FailCall = void(const char*, int, long, long);
using CallCount = long(const char*);
using SetCapturing = void(std::uintptr_t, int);

template <class Function>
Function& rig_function(const char* name) {
    auto* function = cuda_function<Function>(name);
    const bool is_found = function != nullptr;
    REQUIRE_MESSAGE(is_found, name);
    return *function;
}

// The cases below are about the stand-in machine. Each begins with this, which runs the same case
// there and is then true; there it is false, and the case goes on.
inline bool was_run_on_stand_in(const std::string& environment = "") {
    if (std::getenv("GMA_ON_STAND_IN") != nullptr) { return false; }
    const std::string name = doctest::getContextOptions()->currentTest->m_name;
    check_on_stand_in("'" + name + "'", "GMA_ON_STAND_IN=1 " + environment, 1);
    return true;
}

}  // namespace gma
