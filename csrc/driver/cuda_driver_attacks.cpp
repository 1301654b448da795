// Attacks on a card. What they have read comes back through pinned memory.
#include <cuda.h>

#include <array>
#include <cstring>
#include <utility>

#include "driver/attacks.h"
#include "driver/cuda_driver_contexts.h"
#include "driver/cuda_driver_entry_points.h"
#include "driver/cuda_driver_events.h"
#include "driver/cuda_driver_kernels.h"
#include "driver/cuda_driver_staging.h"
#include "kernels/attack.h"

namespace gma {
namespace {

// What a card says after an access that it could not make; the context is lost with it.
bool is_fault(CUresult result) {
    return result == CUDA_ERROR_ILLEGAL_ADDRESS || result == CUDA_ERROR_MISALIGNED_ADDRESS ||
           result == CUDA_ERROR_INVALID_ADDRESS_SPACE || result == CUDA_ERROR_LAUNCH_FAILED;
}

struct Parts {
    Parts(CudaEntryPoints entry_points, int device_count)
        : api(entry_points), contexts(api, device_count) {}

    const CudaEntryPoints api;
    CudaContexts contexts;
    CudaEvents events{contexts};
    CudaStaging staging{contexts, events, CudaStaging::Contents::Anything};
    CudaKernels kernels{
        contexts, attack_image(), {kPokeKernel, kPeekKernel, kScatterKernel, kGatherKernel}};
};

class CudaAttackRun final : public AttackRun {
public:
    // Without an entry the access has faulted before the launch returned.
    CudaAttackRun(std::shared_ptr<Parts> parts, CudaStaging::Block output, Bytes bytes,
                  CudaEvents::Entry* entry)
        : parts_(std::move(parts)), output_(output), bytes_(bytes), entry_(entry) {}

    ~CudaAttackRun() override {
        if (entry_ != nullptr) { parts_->staging.give_back_after(output_, entry_); }
    }
    CudaAttackRun(const CudaAttackRun&) = delete;
    CudaAttackRun& operator=(const CudaAttackRun&) = delete;

    Result<AttackEnd> end(bool wait) override {
        if (entry_ == nullptr) { return AttackEnd::Fault; }
        const CurrentContext context(parts_->contexts, entry_->device);
        if (!context.status().ok()) { return context.status(); }
        const RelaxedCapture relaxed(parts_->api);
        const CUresult result = wait ? parts_->api.cuEventSynchronize(entry_->event)
                                     : parts_->api.cuEventQuery(entry_->event);
        if (result == CUDA_ERROR_NOT_READY) { return AttackEnd::Running; }
        if (is_fault(result)) { return AttackEnd::Fault; }
        if (result != CUDA_SUCCESS) {
            return cuda_failure(parts_->api, result, wait ? "cuEventSynchronize" : "cuEventQuery");
        }
        return AttackEnd::Done;
    }

    std::vector<unsigned char> data() const override {
        return {output_.data, output_.data + bytes_};
    }

private:
    std::shared_ptr<Parts> parts_;
    CudaStaging::Block output_;
    Bytes bytes_;
    CudaEvents::Entry* entry_;
};

class CudaAttacker final : public Attacker {
public:
    explicit CudaAttacker(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}

    Result<std::unique_ptr<AttackRun>> launch(int device, Stream stream,
                                              const Attack& attack) override;

private:
    Result<CudaEvents::Entry*> launch_recorded(int device, CUstream stream, CUfunction kernel,
                                               AttackArguments& arguments);

    std::shared_ptr<Parts> parts_;
};

Result<std::unique_ptr<AttackRun>> CudaAttacker::launch(int device, Stream stream,
                                                        const Attack& attack) {
    if (Status status = check_attack(attack); !status.ok()) { return status; }
    const CurrentContext context(parts_->contexts, device);
    if (!context.status().ok()) { return context.status(); }
    const auto* kernels = parts_->kernels.of(device);
    if (kernels == nullptr) { return Status(Code::NotSupported, parts_->kernels.lack(device)); }
    const ByteRange range = attacked_range(attack);
    Result<CudaStaging::Block> output = parts_->staging.take(device, kMostAttackBytes);
    if (!output) { return output.status(); }
    AttackArguments arguments{.address = attack.address,
                              .index = attack.index,
                              .count = attack.bytes,
                              .spin_ns = attack.spin_ns,
                              .output = output->data,
                              .value = attack.value,
                              .unused = 0};
    const CUfunction kernel = (*kernels)[static_cast<std::size_t>(attack.kind)];
    Result<CudaEvents::Entry*> entry =
        launch_recorded(device, static_cast<CUstream>(stream), kernel, arguments);
    if (!entry) { return entry.status(); }
    const Bytes read_bytes = is_write(attack.kind) ? 0 : range.end - range.begin;
    return Result<std::unique_ptr<AttackRun>>(
        std::make_unique<CudaAttackRun>(parts_, *output, read_bytes, *entry));
}

// nullptr: the kernel has run and faulted already.
Result<CudaEvents::Entry*> CudaAttacker::launch_recorded(int device, CUstream stream,
                                                         CUfunction kernel,
                                                         AttackArguments& arguments) {
    Result<CudaEvents::Entry*> entry = parts_->events.take(device);
    if (!entry) { return entry; }
    CUresult result = launch_kernel(parts_->api, kernel, 1, kAttackThreads, stream, &arguments);
    const char* call = "cuLaunchKernel";
    if (result == CUDA_SUCCESS) {
        call = "cuEventRecord";
        result = parts_->api.cuEventRecord((*entry)->event, stream);
        if (result == CUDA_SUCCESS) { return entry; }
        if (is_fault(result)) { return static_cast<CudaEvents::Entry*>(nullptr); }
    }
    parts_->events.give_back(*entry);
    return cuda_failure(parts_->api, result, call);
}

}  // namespace

Result<std::unique_ptr<Attacker>> make_cuda_attacker() {
    Result<CudaEntryPoints> api = load_cuda_entry_points();
    if (!api) { return api.status(); }
    int device_count = 0;
    CUresult result = api->cuInit(0);
    if (result == CUDA_SUCCESS) { result = api->cuDeviceGetCount(&device_count); }
    if (result != CUDA_SUCCESS) { return cuda_failure(*api, result, "cuInit"); }
    return Result<std::unique_ptr<Attacker>>(
        std::make_unique<CudaAttacker>(std::make_shared<Parts>(*api, device_count)));
}

}  // namespace gma
