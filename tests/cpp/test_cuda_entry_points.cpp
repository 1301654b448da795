// Finding libcuda.so.1 and its functions: what a user is told when that does not work. None of it
// needs a card; the libraries are fakes of a few lines.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "child_process.h"
#include "driver/cuda_driver.h"

namespace gma {
namespace {

// The other end of told_with(): says what make_cuda_driver() said.
int report_driver() {
    const Result<std::unique_ptr<Driver>> driver = make_cuda_driver();
    const Status status = driver.status();
    std::cout << "code " << static_cast<int>(status.code()) << " " << status.driver_code() << "\n"
              << status.message() << "\n";
    if (driver) {
        std::cout << "devices " << (*driver)->device_count() << " page_bytes "
                  << (*driver)->properties(0)->page_bytes << "\n";
    }
    return 0;
}

class FakeDriver {
public:
    explicit FakeDriver(const std::string& flags = "") {
        const std::string source =
            (std::filesystem::path(__FILE__).parent_path() / "fake_libcuda.cpp").string();
        const ChildResult compiled = run_shell("${CXX:-c++} -shared -fPIC " + flags + " '" +
                                               source + "' -o '" + library() + "'");
        REQUIRE_MESSAGE(compiled.exit_code == 0, compiled.output);
    }

    std::string library() const { return (folder_.path() / "libcuda.so.1").string(); }

    // What the program prints that finds this library.
    std::string told_with(const std::string& environment) const {
        const ChildResult child =
            run_self("LD_LIBRARY_PATH=" + folder_.path().string() + " " + environment, "--report");
        REQUIRE_MESSAGE(child.exit_code == 0, child.output);
        return child.output;
    }

private:
    TemporaryFolder folder_;
};

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::string code_line(Code code, int driver_code) {
    return "code " + std::to_string(static_cast<int>(code)) + " " + std::to_string(driver_code) +
           "\n";
}

// The names that the loader asked for, in order.
std::vector<std::string> asked_for(const std::string& output) {
    std::vector<std::string> names;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string first;
        std::string name;
        if (words >> first >> name && first == "asked") { names.push_back(name); }
    }
    return names;
}

}  // namespace

TEST_CASE("entry points: this machine's driver works, or there is a reason") {
    const Result<std::unique_ptr<Driver>> driver = make_cuda_driver();
    if (!driver) {
        CHECK(driver.status().code() == Code::NotSupported);
        CHECK_FALSE(driver.status().message().empty());
    } else {
        CHECK((*driver)->device_count() > 0);
    }
}

TEST_CASE("entry points: each of them is needed") {
    const FakeDriver fake;
    const std::string complete = fake.told_with("");
    CHECK(contains(complete, code_line(Code::Ok, 0)));
    CHECK(contains(complete, "devices 1 page_bytes 0\n"));
    const std::vector<std::string> names = asked_for(complete);
    REQUIRE(names.size() > 20);
    for (const std::string& name : names) {
        const std::string told = fake.told_with("FAKE_LACKS=" + name);
        CHECK_MESSAGE(contains(told, code_line(Code::NotSupported, 0)), told);
        CHECK_MESSAGE(contains(told, "libcuda.so.1 has no " + name + " of version "), told);
    }
}

TEST_CASE("entry points: the versions asked for are those of this cuda.h's signatures") {
    const std::string output = FakeDriver().told_with("");
    CHECK(contains(output, "asked cuMemAlloc 3020 1\n"));  // 1: the legacy default stream
    CHECK(contains(output, "asked cuEventDestroy 4000 1\n"));
    CHECK(contains(output, "asked cuStreamGetId 12000 1\n"));
}

TEST_CASE("entry points: a driver that cannot be used is explained") {
    const FakeDriver fake;
    const std::string no_card = fake.told_with("FAKE_INIT=100");
    CHECK(contains(no_card, code_line(Code::NotSupported, 100)));
    CHECK(contains(no_card, "the CUDA driver sees no card"));
    CHECK(contains(fake.told_with("FAKE_DEVICES=0"), "the CUDA driver sees no card"));
    const std::string sick = fake.told_with("FAKE_INIT=999");
    CHECK(contains(sick, code_line(Code::DriverFailed, 999)));
    CHECK(contains(sick, "cuInit failed: CUresult (999)"));
    const std::string gone = fake.told_with("FAKE_INIT=4");
    CHECK(contains(gone, code_line(Code::DriverFailed, 4)));
    CHECK(contains(gone, "cuInit failed: CUDA_ERROR_DEINITIALIZED (4)"));
}

TEST_CASE("entry points: a driver that is too old or no library at all is explained") {
    const std::string old = FakeDriver("-DFAKE_IS_OLD").told_with("");
    CHECK(contains(old, code_line(Code::NotSupported, 0)));
    CHECK(contains(old, "older than CUDA 12.0"));

    const FakeDriver fake;
    std::ofstream(fake.library()) << "not a library";
    const std::string broken = fake.told_with("");
    CHECK(contains(broken, code_line(Code::NotSupported, 0)));
    CHECK(contains(broken, "no CUDA driver: "));
    CHECK(contains(broken, "libcuda.so.1"));
}

}  // namespace gma

int main(int count, char** arguments) {
    if (count == 2 && std::strcmp(arguments[1], "--report") == 0) { return gma::report_driver(); }
    return doctest::Context(count, arguments).run();
}
