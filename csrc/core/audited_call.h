// The audit preset recounts everything around every public call that changes something.
#pragma once

#include "base/check.h"
#include "core/allocator.h"

#if GMA_AUDIT_EVERY_CALL
namespace gma {

class AuditedCall {
public:
    explicit AuditedCall(Allocator& allocator) : allocator_(allocator) { audit("before a call:"); }
    ~AuditedCall() { audit("after a call:"); }
    AuditedCall(const AuditedCall&) = delete;
    AuditedCall& operator=(const AuditedCall&) = delete;

private:
    void audit(const char* when) {
        const Status status = allocator_.audit();
        if (status.ok() || status.code() == Code::Forked) { return; }
        audit_failed(when, status.message().c_str());
    }
    Allocator& allocator_;
};

}  // namespace gma
#define GMA_AUDITED_CALL const AuditedCall audited_call(*this)
#else
#define GMA_AUDITED_CALL static_cast<void>(0)
#endif
