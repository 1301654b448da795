// Private pools: CUDA graphs, torch.cuda.MemPool, and the checkpoints of graph trees.
#include "torch/bridge/bridge_allocator.h"
#include "torch/bridge/errors.h"

namespace gma::bridge {
namespace {

// Whole segments from another of torch's allocators, for a MemPool that was given one.
class TorchProvider final : public SegmentProvider {
public:
    explicit TorchProvider(std::shared_ptr<cca::CUDAAllocator> allocator)
        : allocator_(std::move(allocator)) {}

    Result<Address> obtain(Bytes bytes) override {
        try {
            void* const pointer = allocator_->raw_alloc(bytes);
            if (pointer != nullptr) { return reinterpret_cast<Address>(pointer); }
            return Status(Code::OutOfMemory, allocator_->name() + " has no memory left");
        } catch (const c10::OutOfMemoryError& error) {
            return Status(Code::OutOfMemory, error.what_without_backtrace());
        } catch (const std::exception& error) { return Status(Code::DriverFailed, error.what()); }
    }
    void give_back(Address address) noexcept override {
        try {
            allocator_->raw_delete(reinterpret_cast<void*>(address));
        } catch (...) {  // theirs to tell; a free ends no process
        }
    }

private:
    const std::shared_ptr<cca::CUDAAllocator> allocator_;
};

struct PoolCheckpoint final : cca::AllocatorState {
    PoolId pool;
    std::vector<PoolBlock> blocks;
};

}  // namespace

void BridgeAllocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                                          std::function<bool(cudaStream_t)> filter) {
    if (is_previous_pool(device, pool)) {
        add_route({device, pool, filter, Owner::Previous});
        previous_->beginAllocateToPool(device, pool, std::move(filter));
        return;
    }
    has_pools_ = true;
    auto takes = [filter](Stream stream) { return filter(static_cast<cudaStream_t>(stream)); };
    check(core().begin_pool(device, pool_of(pool), std::move(takes)));
    if (late_) { add_route({device, pool, std::move(filter), Owner::Ours}); }
}

void BridgeAllocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
    const bool is_previous = is_previous_pool(device, pool);
    if (late_) { remove_route(device, pool); }
    if (is_previous) { return previous_->endAllocateToPool(device, pool); }
    check(core().end_pool(device, pool_of(pool)));
}

void BridgeAllocator::releasePool(DeviceIndex device, MempoolId_t pool) {
    if (is_previous_pool(device, pool)) { return previous_->releasePool(device, pool); }
    check(core().release_pool(device, pool_of(pool)));
}

int BridgeAllocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
    if (is_previous_pool(device, pool)) { return previous_->getPoolUseCount(device, pool); }
    return static_cast<int>(core().pool_use_count(device, pool_of(pool)));
}

void BridgeAllocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                                         std::shared_ptr<cca::CUDAAllocator> allocator) {
    if (is_previous_pool(device, pool)) {
        return previous_->createOrIncrefPool(device, pool, std::move(allocator));
    }
    std::shared_ptr<SegmentProvider> provider;
    if (allocator != nullptr && allocator.get() != this) {
        provider = std::make_shared<TorchProvider>(std::move(allocator));
    }
    check(core().retain_pool(device, pool_of(pool), std::move(provider)));
}

void BridgeAllocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) {
    if (is_previous_pool(device, pool)) { return previous_->setUseOnOOM(device, pool, use); }
    check(core().set_pool_use_on_oom(device, pool_of(pool), use));
}

void BridgeAllocator::setNoSplit(DeviceIndex device, MempoolId_t pool) {
    if (is_previous_pool(device, pool)) { return previous_->setNoSplit(device, pool); }
    check(core().set_pool_no_split(device, pool_of(pool)));
}

bool BridgeAllocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                               const std::unordered_set<void*>& expected) {
    if (is_previous_pool(device, pool)) {
        return previous_->checkPoolLiveAllocations(device, pool, expected);
    }
    const auto blocks = value_of(core().pool_state(device, pool_of(pool)));
    for (const PoolBlock& block : blocks) {
        if (expected.count(reinterpret_cast<void*>(block.address)) == 0) { return false; }
    }
    return blocks.size() == expected.size();
}

std::shared_ptr<cca::AllocatorState> BridgeAllocator::getCheckpointState(DeviceIndex device,
                                                                         MempoolId_t pool) {
    if (is_previous_pool(device, pool)) { return previous_->getCheckpointState(device, pool); }
    auto state = std::make_shared<PoolCheckpoint>();
    state->pool = pool_of(pool);
    state->blocks = value_of(core().pool_state(device, state->pool));
    return state;
}

cca::CheckpointDelta BridgeAllocator::setCheckpointPoolState(
    DeviceIndex device, std::shared_ptr<cca::AllocatorState> state) {
    const auto checkpoint = std::dynamic_pointer_cast<PoolCheckpoint>(state);
    if (checkpoint == nullptr) { return previous_->setCheckpointPoolState(device, state); }
    const PoolChange change =
        value_of(core().restore_pool(device, checkpoint->pool, checkpoint->blocks));
    cca::CheckpointDelta delta;
    for (const Address address : change.freed) {
        delta.ptrs_freed.push_back(reinterpret_cast<void*>(address));
    }
    for (const Address address : change.allocated) {
        void* const pointer = reinterpret_cast<void*>(address);
        delta.dataptrs_allocd.emplace_back(pointer, pointer, deleter_of_ours(),
                                           c10::Device(c10::kCUDA, device));
    }
    return delta;
}

}  // namespace gma::bridge
