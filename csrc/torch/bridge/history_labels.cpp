// What a thread's events are labelled with: the context of its compilation, and the user's
// metadata.
#include "torch/bridge/history.h"

namespace gma::bridge {
namespace {

struct ThreadLabels {
    ThreadLabels() = default;
    ThreadLabels(const ThreadLabels&) = delete;
    ThreadLabels& operator=(const ThreadLabels&) = delete;
    ~ThreadLabels() { History::label_with(nullptr); }  // more of the thread may still be freed

    std::vector<std::string> compile_contexts;
    std::string metadata;
    std::shared_ptr<const Labels> current;
};

ThreadLabels& thread_labels() {
    static thread_local ThreadLabels labels;
    return labels;
}

void renew_labels(ThreadLabels& thread) {
    const bool none = thread.compile_contexts.empty() && thread.metadata.empty();
    thread.current = none ? nullptr
                          : std::make_shared<const Labels>(Labels{
                                thread.compile_contexts.empty() ? kNoCompileContext
                                                                : thread.compile_contexts.back(),
                                thread.metadata});
    History::label_with(none ? nullptr : &thread.current);
}

}  // namespace

void History::push_compile_context(std::string context) {
    ThreadLabels& thread = thread_labels();
    thread.compile_contexts.push_back(std::move(context));
    renew_labels(thread);
}
void History::pop_compile_context() {
    ThreadLabels& thread = thread_labels();
    if (thread.compile_contexts.empty()) { return; }
    thread.compile_contexts.pop_back();
    renew_labels(thread);
}

void History::set_metadata(const std::string& metadata) {
    ThreadLabels& thread = thread_labels();
    thread.metadata = metadata;
    renew_labels(thread);
}

std::string History::metadata() { return thread_labels().metadata; }

}  // namespace gma::bridge
