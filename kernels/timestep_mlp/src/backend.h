// What a device brings to the C ABI: abi.cpp checks the arguments, and one of backend.cpp and cuda/backend.cu computes.
#pragma once

#include <stdint.h>

#include "status.h"

namespace det {

// How a call is to be made: det_linear.h's `threads` and `stream`.
struct Where {
    int32_t threads;
    void *stream;
};

// A pointer argument and its name.
struct Given {
    const char *name;
    const void *pointer;
};

// What the ABI names DET_LINEAR_ACTIVATION_*.
enum class Activation : int32_t { none, silu, silu_portable };

const char *device();

// nullptr when this machine can run the library, otherwise why not.
const char *unavailable();

// nullptr when the call can be made there with these pointers and with matrices of at most `longest` rows or columns,
// otherwise in words why not. Valid until the calling thread's next call.
const char *refusal(const Where &where, const Given *given, int64_t count, int64_t longest);

// Why the calling thread's last call returned Status::failed.
const char *failure();

Status forward(const float *x, const float *w, const float *bias, float *y, float *pre, int64_t t, int64_t n, int64_t k,
               Activation activation, const Where &where);
Status input_gradient(const float *g, const float *w, float *dx, int64_t t, int64_t n, int64_t k, const Where &where);
Status weight_gradient(const float *g, const float *x, float *dw, int64_t t, int64_t n, int64_t k, const Where &where);
Status bias_gradient(const float *g, float *db, int64_t t, int64_t n, const Where &where);
Status silu_backward(const float *g, const float *z, float *dz, int64_t count, Activation activation,
                     const Where &where);
Status expf(const float *x, float *y, int64_t count, Activation activation, const Where &where);

}  // namespace det
