// What works on each element or column by itself.
#pragma once

#include <stdint.h>

#include "../status.h"

namespace det {

Status expf(const float *x, float *y, int64_t count, int32_t threads);

Status silu(const float *pre, float *y, int64_t count, int32_t threads);

Status silu_backward(const float *g, const float *z, float *dz, int64_t count, int32_t threads);

// db[j] = 0 + g[0, j] + g[1, j] + ..., left to right; g is (t, n).
Status bias_gradient(const float *g, float *db, int64_t t, int64_t n, int32_t threads);

}  // namespace det
