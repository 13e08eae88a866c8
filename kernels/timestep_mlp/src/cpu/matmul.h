// The three matrix products of a linear layer, each in the contract's order of summation.
#pragma once

#include <stdint.h>

#include "../status.h"

namespace det {

// y (t, n) = bias + x w^T: 32 lanes over k, combined by a tree.
Status forward(const float *x, const float *w, const float *bias, float *y, int64_t t, int64_t n, int64_t k,
               int32_t threads);

// dx (t, k) = g w: chunks of 64 over n, added left to right.
Status input_gradient(const float *g, const float *w, float *dx, int64_t t, int64_t n, int64_t k, int32_t threads);

// dw (n, k) = g^T x: one chain over t.
Status weight_gradient(const float *g, const float *x, float *dw, int64_t t, int64_t n, int64_t k, int32_t threads);

}  // namespace det
