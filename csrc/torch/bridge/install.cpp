#include "torch/bridge/install.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include "torch/bridge/settings.h"

namespace gma::bridge {
namespace {

namespace pluggable = torch::cuda::CUDAPluggableAllocator;

// Above PyTorch's own registration, which has 0.
constexpr std::uint8_t kPriority = 255;

// Never destroyed. The object is not, either: a second owner keeps it when torch's lets go at exit.
std::shared_ptr<BridgeAllocator>& owner() {
    static auto* const kOwner = new std::shared_ptr<BridgeAllocator>();
    return *kOwner;
}

std::atomic<BridgeAllocator*> the_object{nullptr};

// With what keeps it alive: torch lets go of it when the next one is put in its place. PyTorch's
// own live as long as the process.
std::shared_ptr<cca::CUDAAllocator> current() {
    cca::CUDAAllocator* const now = cca::allocator.load();
    std::shared_ptr<cca::CUDAAllocator> owned = pluggable::getCurrentAllocator();
    if (owned.get() == now) { return owned; }
    return {now, [](cca::CUDAAllocator*) {}};
}

}  // namespace

BridgeAllocator* the_bridge() noexcept { return the_object.load(std::memory_order_relaxed); }

void attach(const CoreAccess& access) {
    TORCH_CHECK(access.layout == kCoreLayout,
                "gpumem_alloc: this bridge was built for another version of gpumem_alloc; run "
                "`python -m gpumem_alloc bridge build`");
    if (owner() != nullptr) { return; }
    owner() = std::make_shared<BridgeAllocator>(access, current());
    the_object = owner().get();
}

std::shared_ptr<cca::CUDAAllocator> allocator() { return owner(); }

bool is_installed() noexcept {
    return the_bridge() != nullptr && cca::allocator.load() == the_bridge();
}

std::string foreign_name() {
    if (is_installed()) { return ""; }
    const std::string name = cca::allocator.load()->name();
    return name == "native" || name == "cudaMallocAsync" ? "" : name;
}

Moment install() {
    TORCH_CHECK(owner() != nullptr, "gpumem_alloc: the bridge is not attached");
    if (is_installed()) { return Moment::Early; }
    const std::string foreign = foreign_name();
    TORCH_CHECK(foreign.empty(), "gpumem_alloc: another CUDA allocator is in place: ", foreign);
    cca::CUDAAllocator* const previous = cca::allocator.load();
    const bool late = previous->initialized();
    // While the allocator that they name is in place: PyTorch compares both.
    read_settings_first();
    if (late) {
        TORCH_CHECK(
            c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None,
            "gpumem_alloc: a CUDA graph is being captured on the current stream");
        previous->emptyCache({0, 0});
        owner()->set_late();
        owner()->set_being_registered(true);  // a pool or another thread may have started it
        cca::allocator.store(owner().get());
    }
    pluggable::changeCurrentAllocator(owner());
    owner()->set_being_registered(false);
    c10::SetAllocator(c10::kCUDA, owner().get(), kPriority);
    if (late) {
        owner()->init(c10::cuda::device_count());
        owner()->take_over();
    }
    return late ? Moment::Late : Moment::Early;
}

}  // namespace gma::bridge
