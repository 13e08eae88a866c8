// Fork and join over a static partition of independent work.
#pragma once

#include <stdint.h>

#include "../status.h"

namespace det {

constexpr int32_t kMostThreads = 1024;

// How many threads `count` pieces of work are shared by when `threads` are allowed.
inline int32_t workers(int64_t count, int32_t threads) {
    return count < threads ? static_cast<int32_t>(count) : threads;
}

using Body = void (*)(const void *context, int32_t worker, int64_t begin, int64_t end);

Status fork_join(int64_t count, int32_t threads, Body body, const void *context);

// Calls work(worker, begin, end) on workers(count, threads) threads, the calling one among them; their ranges cut
// 0..count into contiguous parts. Each runs in the contract's floating-point mode.
template <class Work>
Status parallel(int64_t count, int32_t threads, const Work &work) {
    const Body body = [](const void *context, int32_t worker, int64_t begin, int64_t end) {
        (*static_cast<const Work *>(context))(worker, begin, end);
    };
    return fork_join(count, threads, body, &work);
}

}  // namespace det
