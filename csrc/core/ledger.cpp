#include "core/ledger.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace gma {
namespace {

std::uint64_t now_ns() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace

void Ledger::allocated(LedgerEntry entry) {
    entry.allocation_number = ++allocation_count_;
    entry.allocated_at_ns = now_ns();
    gone_.erase(entry.address);
    live_[entry.address] = entry;
}

void Ledger::freed(Address address) {
    auto node = live_.extract(address);
    if (node.empty()) { return; }
    LedgerEntry& entry = node.mapped();
    entry.free_number = ++free_count_;
    entry.freed_at_ns = now_ns();
    entry.state = LedgerEntry::State::Waiting;
    gone_order_.emplace_back(address, entry.free_number);
    gone_.insert_or_assign(address, entry);
    if (gone_order_.size() > kMaxGone) { forget_oldest(); }
}

// Unless its address has been freed again since.
void Ledger::forget_oldest() {
    const auto [address, free_number] = gone_order_.front();
    gone_order_.pop_front();
    const auto it = gone_.find(address);
    if (it != gone_.end() && it->second.free_number == free_number) { gone_.erase(it); }
}

void Ledger::quarantined(Address address) {
    if (const auto it = gone_.find(address); it != gone_.end()) {
        it->second.state = LedgerEntry::State::Quarantined;
    }
}

void Ledger::expired(Address address) { gone_.erase(address); }

const LedgerEntry* Ledger::live(Address address) const {
    const auto it = live_.find(address);
    return it == live_.end() ? nullptr : &it->second;
}

const LedgerEntry* Ledger::gone(Address address) const {
    const auto it = gone_.find(address);
    return it == gone_.end() ? nullptr : &it->second;
}

// Blocks of different sizes may have had the place, the newest one not nearest.
const LedgerEntry* Ledger::last_at(Address address) const {
    constexpr int kLooks = 256;
    const LedgerEntry* newest = nullptr;
    auto it = gone_.upper_bound(address);
    for (int look = 0; look < kLooks && it != gone_.begin(); ++look) {
        const LedgerEntry& entry = (--it)->second;
        if (entry.window_end <= address) { continue; }
        if (newest == nullptr || entry.free_number > newest->free_number) { newest = &entry; }
    }
    return newest;
}

std::vector<LedgerEntry> Ledger::entries() const {
    std::vector<LedgerEntry> all;
    all.reserve(live_.size() + gone_.size());
    for (const auto& [address, entry] : live_) { all.push_back(entry); }
    for (const auto& [address, entry] : gone_) { all.push_back(entry); }
    std::sort(all.begin(), all.end(), [](const LedgerEntry& a, const LedgerEntry& b) {
        return a.allocation_number < b.allocation_number;
    });
    return all;
}

void Ledger::add(Violation violation) {
    const bool again = std::any_of(found_.begin(), found_.end(), [&](const Violation& known) {
        return known.kind == violation.kind && known.first_bad == violation.first_bad &&
               known.tensor.allocation_number == violation.tensor.allocation_number &&
               violation.kind <= Violation::Kind::WriteAfterFree;
    });
    if (again) { return; }
    violation.device = device_;
    violation.found_at_ns = now_ns();
    ++violation_count_;
    found_.push_back(std::move(violation));
    if (found_.size() > kMaxViolations) { found_.pop_front(); }
}

Violation Ledger::refused_free(Address address) {
    Violation violation;
    violation.kind = Violation::Kind::ForeignPointer;
    violation.first_bad = address;
    if (const LedgerEntry* first = gone(address); first != nullptr) {
        violation.kind = Violation::Kind::DoubleFree;
        violation.tensor = *first;
    }
    add(violation);
    return found_.back();
}

}  // namespace gma
