#include "parallel.h"

#include <pthread.h>

#include "float_mode.h"

namespace det {
namespace {

struct Part {
    Body body;
    const void *context;
    int32_t worker;
    int64_t begin, end;
};

// Called through a pointer, so that no arithmetic of the body can move out of the mode's scope.
void *run(void *argument) {
    const Part &part = *static_cast<const Part *>(argument);
    const FloatMode mode;
    part.body(part.context, part.worker, part.begin, part.end);
    return nullptr;
}

}  // namespace

Status fork_join(int64_t count, int32_t threads, Body body, const void *context) {
    const int32_t total = workers(count, threads);
    Part parts[kMostThreads];
    pthread_t started[kMostThreads];
    // The first `longer` parts have one piece more than the others.
    const int64_t size = count / total, longer = count % total;
    int64_t begin = 0;
    for (int32_t i = 0; i < total; ++i) {
        const int64_t end = begin + size + (i < longer ? 1 : 0);
        parts[i] = {body, context, i, begin, end};
        begin = end;
    }
    int32_t running = 1;
    while (running < total && pthread_create(&started[running], nullptr, run, &parts[running]) == 0) ++running;
    const bool complete = running == total;
    if (complete) run(&parts[0]);
    for (int32_t i = 1; i < running; ++i) pthread_join(started[i], nullptr);
    return complete ? Status::ok : Status::no_thread;
}

}  // namespace det
