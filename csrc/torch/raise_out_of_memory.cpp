// The exception is thrown with the C++ runtime's own calls, since the type is only known at run
// time: allocate, construct, __cxa_throw with torch's typeinfo. What that needs, from c10's headers
// (c10/util/Exception.h and StringUtil.h, the same in 2.9 - 2.15):
//   - struct SourceLocation { const char* function; const char* file; uint32_t line; };
//   - class Error : std::exception, built by Error(SourceLocation, std::string), 128 bytes;
//   - class OutOfMemoryError : Error, with no member of its own;
//   - the first slot of its table is the destructor.
#include "torch/raise_out_of_memory.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <new>
#include <typeinfo>

namespace gma {
namespace {

struct SourceLocation {
    const char* function;
    const char* file;
    std::uint32_t line;
};
using Construct = void (*)(void*, SourceLocation, std::string);

// Eight times what c10::Error takes, so that a class that grew still fits.
constexpr std::size_t kExceptionBytes = 1024;
constexpr const char* kConstructor =
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_"
    "traitsIcESaIcEEE";
constexpr const char* kBaseConstructor =
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kTypeInfo = "_ZTIN3c1016OutOfMemoryErrorE";
constexpr const char* kTable = "_ZTVN3c1016OutOfMemoryErrorE";

std::atomic<RaisePath> chosen{RaisePath::Automatic};

// Torch's libraries are loaded RTLD_LOCAL, so each is asked by name. The typeinfo lies in libc10
// from 2.13 on, before that in whichever library throws the error.
void* symbol(const char* name) {
    for (const char* library : {"libc10.so", "libc10_cuda.so", "libtorch_cuda.so"}) {
        void* const handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
        void* const found = handle != nullptr ? dlsym(handle, name) : nullptr;
        if (found != nullptr) { return found; }
    }
    return nullptr;
}

// What a throw needs. `table` is null where the class's own constructor sets it.
struct Recipe {
    Construct construct = nullptr;
    std::type_info* type = nullptr;
    void** table = nullptr;
};

Recipe find_recipe(RaisePath path) {
    Recipe recipe;
    recipe.type = static_cast<std::type_info*>(symbol(kTypeInfo));
    if (recipe.type == nullptr || path == RaisePath::BadAlloc) { return {}; }
    if (path != RaisePath::BaseAndTable) {
        recipe.construct = reinterpret_cast<Construct>(symbol(kConstructor));
        if (recipe.construct != nullptr) { return recipe; }
    }
    recipe.construct = reinterpret_cast<Construct>(symbol(kBaseConstructor));
    recipe.table = static_cast<void**>(symbol(kTable));
    return recipe.construct != nullptr && recipe.table != nullptr ? recipe : Recipe{};
}

void destroy(void* exception) {
    using Destructor = void (*)(void*);
    Destructor* const table = *static_cast<Destructor**>(exception);
    table[0](exception);
}

}  // namespace

void set_raise_path(RaisePath path) { chosen.store(path); }

void raise_out_of_memory(const std::string& message) {
    const Recipe recipe = find_recipe(chosen.load());
    if (recipe.construct == nullptr) { throw std::bad_alloc(); }
    void* const exception = abi::__cxa_allocate_exception(kExceptionBytes);
    try {
        recipe.construct(exception, {"allocate", "gpumem_alloc", 0}, message);
    } catch (...) {
        abi::__cxa_free_exception(exception);
        throw std::bad_alloc();
    }
    // A table begins with the offset to the top and the typeinfo; an object points past both.
    if (recipe.table != nullptr) { *static_cast<void***>(exception) = recipe.table + 2; }
    abi::__cxa_throw(exception, recipe.type, destroy);
}

}  // namespace gma
