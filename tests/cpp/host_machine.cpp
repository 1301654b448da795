// An allocator over the host driver behind a line protocol, for tests/test_state_machine.py: one
// command a line on stdin, one reply a line on stdout.
//   allocate DEVICE BYTES STREAM     -> ok ADDRESS | oom | error TEXT
//   free ADDRESS   record ADDRESS STREAM
//   write|check DEVICE STREAM ADDRESS BYTES PATTERN    (a kernel is queued)
//   order DEVICE FIRST THEN          (later work of one stream comes after the other's until now)
//   advance DEVICE STREAM COUNT      -> ok DONE
//   drain   trim DEVICE BYTES   limit DEVICE BYTES
//   begin DEVICE POOL STREAM   end DEVICE POOL   release DEVICE POOL
//   books DEVICE    -> ok COUNT REQUESTED ALLOCATED ACTIVE RESERVED HELD MOVED OOMS
//   state           -> ok MISMATCHES CHECKS   (or the audit's error)
//   new DEVICES CAPACITY PAGE OPTIONS
//   end_of_life     -> ok HANDLES SEGMENTS MAPPINGS RESERVATIONS EVENTS, after destroying it
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "core/allocator.h"
#include "driver/host_driver.h"

namespace gma {
namespace {

using Reply = std::string;

Reply reply(const Status& status, const std::string& value = "") {
    if (status.ok()) { return value.empty() ? "ok" : "ok " + value; }
    return (status.code() == Code::OutOfMemory ? "oom " : "error ") +
           status.message().substr(0, status.message().find('\n'));
}

template <class... Values>
std::string joined(const Values&... values) {
    std::ostringstream text;
    ((text << values << ' '), ...);
    return text.str();
}

class Machine {
public:
    Machine(const HostDriverConfig& config, const Options& options) : driver_(config) {
        Result<std::unique_ptr<Allocator>> made = Allocator::create(driver_, options);
        status_ = made.status();
        if (made) { allocator_ = std::move(*made); }
    }
    const Status& status() const { return status_; }

    Reply run(const std::string& command, std::istream& in) {
        if (command == "write" || command == "check") { return launch(command == "check", in); }
        if (command == "state") { return state(); }
        if (command == "drain") {
            driver_.drain_all();
            return "ok";
        }
        if (command == "end_of_life") { return end_of_life(); }
        if (command == "free" || command == "record") {
            const auto address = next<Address>(in);
            return reply(command == "free" ? allocator_->free(address)
                                           : allocator_->record_stream(address, stream(in)));
        }
        return run_on_device(command, next<int>(in), in);
    }

private:
    template <class Value>
    static Value next(std::istream& in) {
        Value value{};
        in >> value;
        return value;
    }
    static Stream stream(std::istream& in) {
        return reinterpret_cast<Stream>(next<std::uintptr_t>(in));
    }

    Reply run_on_device(const std::string& command, int device, std::istream& in) {
        if (command == "allocate") {
            const auto bytes = next<Bytes>(in);
            const Result<Address> address = allocator_->allocate(device, bytes, stream(in));
            return reply(address.status(), address ? joined(*address) : "");
        }
        if (command == "advance") {
            const Stream which = stream(in);
            return reply({}, joined(driver_.advance(which, next<std::size_t>(in), device)));
        }
        if (command == "order") {
            const Result<Event> event = driver_.record(device, stream(in));
            if (!event) { return reply(event.status()); }
            const Status status = driver_.wait(stream(in), *event);
            driver_.recycle(*event);
            return reply(status);
        }
        if (command == "trim") {
            const Result<Bytes> given = allocator_->trim(device, next<Bytes>(in));
            return reply(given.status(), given ? joined(*given) : "");
        }
        if (command == "limit") { return reply(allocator_->set_limit(device, next<Bytes>(in))); }
        if (command == "books") { return books(device); }
        const PoolId pool{0, next<std::uint64_t>(in)};
        if (command == "begin") {
            const Stream only = stream(in);
            return reply(allocator_->begin_pool(device, pool,
                                                [only](Stream asked) { return asked == only; }));
        }
        if (command == "end") { return reply(allocator_->end_pool(device, pool)); }
        if (command == "release") { return reply(allocator_->release_pool(device, pool)); }
        return "error no such command: " + command;
    }

    Reply launch(bool checks, std::istream& in) {
        const int device = next<int>(in);
        const Stream on = stream(in);
        const auto address = next<Address>(in);
        const auto bytes = next<Bytes>(in);
        const auto pattern = static_cast<unsigned char>(next<unsigned>(in));
        driver_.launch(
            on,
            [this, address, bytes, pattern, checks] {
                auto* memory = reinterpret_cast<unsigned char*>(address);
                bool wrong = false;
                // Dense at both ends, and once in every KiB.
                for (Bytes at = 0; at < bytes; at += at < 64 || bytes - at < 64 ? 1 : 60) {
                    if (checks) {
                        wrong |= memory[at] != pattern;
                    } else {
                        memory[at] = pattern;
                    }
                }
                mismatch_count_ += wrong;
                check_count_ += checks;
            },
            device);
        return "ok";
    }

    Reply state() { return reply(allocator_->audit(), joined(mismatch_count_, check_count_)); }
    Reply books(int device) {
        const DeviceStatistics now = allocator_->statistics(device);
        return reply({}, joined(now.allocation[0].current, now.requested_bytes[0].current,
                                now.allocated_bytes[0].current, now.active_bytes[0].current,
                                now.reserved_bytes[0].current, driver_.held_bytes(device),
                                now.moved_chunks, now.num_ooms));
    }
    Reply end_of_life() {
        allocator_.reset();
        return reply({}, joined(driver_.live_handles(), driver_.segments().size(),
                                driver_.mapped_ranges().size(), driver_.reserved_ranges().size(),
                                driver_.outstanding_events()));
    }

    HostDriver driver_;
    std::unique_ptr<Allocator> allocator_;
    Status status_;
    int mismatch_count_ = 0;
    int check_count_ = 0;
};

Reply renew(std::unique_ptr<Machine>& machine, std::istream& in) {
    HostDriverConfig config;
    std::string text;
    in >> config.device_count >> config.capacity_bytes >> config.page_bytes >> text;
    const Result<Options> options = parse_options(text);
    if (!options) { return reply(options.status()); }
    machine = std::make_unique<Machine>(config, *options);
    return reply(machine->status());
}

}  // namespace
}  // namespace gma

int main() {
    std::unique_ptr<gma::Machine> machine;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream in(line);
        std::string command;
        in >> command;
        std::string answer = "error there is no machine yet";
        if (command == "new") {
            answer = gma::renew(machine, in);
        } else if (machine != nullptr) {
            answer = machine->run(command, in);
        }
        std::cout << answer << std::endl;
    }
    return 0;
}
