// The ABI on a CPU. One exponential serves both activations: the nearest float.
#include "../backend.h"

#include <stdio.h>

#include "elementwise.h"
#include "machine.h"
#include "matmul.h"
#include "parallel.h"

namespace det {

const char *device() { return "cpu"; }

const char *unavailable() { return missing_instructions(); }

const char *refusal(const Where &where, const Given *, int64_t, int64_t) {
    thread_local char words[80];
    if (where.threads < 1 || where.threads > kMostThreads) {
        snprintf(words, sizeof words, "threads is %d; it must be between 1 and %d", where.threads, kMostThreads);
        return words;
    }
    return where.stream == nullptr ? nullptr : "stream is given; on a CPU it must be null";
}

const char *failure() { return ""; }

Status forward(const float *x, const float *w, const float *bias, float *y, float *pre, int64_t t, int64_t n, int64_t k,
               Activation activation, const Where &where) {
    if (activation == Activation::none) return forward(x, w, bias, y, t, n, k, where.threads);
    const Status status = forward(x, w, bias, pre, t, n, k, where.threads);
    return status == Status::ok ? silu(pre, y, t * n, where.threads) : status;
}

Status input_gradient(const float *g, const float *w, float *dx, int64_t t, int64_t n, int64_t k, const Where &where) {
    return input_gradient(g, w, dx, t, n, k, where.threads);
}

Status weight_gradient(const float *g, const float *x, float *dw, int64_t t, int64_t n, int64_t k, const Where &where) {
    return weight_gradient(g, x, dw, t, n, k, where.threads);
}

Status bias_gradient(const float *g, float *db, int64_t t, int64_t n, const Where &where) {
    return bias_gradient(g, db, t, n, where.threads);
}

Status silu_backward(const float *g, const float *z, float *dz, int64_t count, Activation, const Where &where) {
    return silu_backward(g, z, dz, count, where.threads);
}

Status expf(const float *x, float *y, int64_t count, Activation, const Where &where) {
    return expf(x, y, count, where.threads);
}

}  // namespace det
