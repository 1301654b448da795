// Runs this test program again with other libraries or another environment. Which libcuda.so.1 a
// process has is settled at its start, so each needs a process of its own.
#pragma once

#include <doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace gma {

struct ChildResult {
    int exit_code = -1;
    std::string output;  // stdout and stderr
};

inline ChildResult run_shell(const std::string& command) {
    ChildResult result;
    std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::array<char, 4096> piece{};
    for (std::size_t count = 0; (count = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;) {
        result.output.append(piece.data(), count);
    }
    const int status = ::pclose(pipe);
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

// `environment` is in the shell's form: "A=1 B=2".
inline ChildResult run_self(const std::string& environment, const std::string& arguments) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    return run_shell(environment + " '" + self + "' " + arguments);
}

// A folder that lives as long as the test that needs it.
class TemporaryFolder {
public:
    TemporaryFolder() {
        std::string name = (std::filesystem::temp_directory_path() / "gma_test_XXXXXX").string();
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path_ = name;
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path_); }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
};

}  // namespace gma
