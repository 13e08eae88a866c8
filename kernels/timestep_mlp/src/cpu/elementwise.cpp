#include "elementwise.h"

#include "../exponential.h"
#include "parallel.h"

namespace det {
namespace {

// Elements are shared out in pieces, so that a small call doesn't start a thread for a handful of them.
constexpr int64_t kPiece = 4096;

template <class Map>
Status map(float *__restrict out, int64_t count, int32_t threads, const Map &element) {
    return parallel((count + kPiece - 1) / kPiece, threads, [=](int32_t, int64_t begin, int64_t end) {
        const int64_t last = end * kPiece < count ? end * kPiece : count;
        for (int64_t i = begin * kPiece; i < last; ++i) out[i] = element(i);
    });
}

}  // namespace

Status expf(const float *x, float *y, int64_t count, int32_t threads) {
    return map(y, count, threads, [=](int64_t i) { return exp_float(x[i]); });
}

Status silu(const float *pre, float *y, int64_t count, int32_t threads) {
    return map(y, count, threads, [=](int64_t i) { return silu(pre[i], NearestExponential()); });
}

Status silu_backward(const float *g, const float *z, float *dz, int64_t count, int32_t threads) {
    return map(dz, count, threads, [=](int64_t i) { return silu_backward(g[i], z[i], NearestExponential()); });
}

Status bias_gradient(const float *g, float *db, int64_t t, int64_t n, int32_t threads) {
    return parallel(n, threads, [=](int32_t, int64_t begin, int64_t end) {
        float *__restrict sums = db;
        for (int64_t j = begin; j < end; ++j) sums[j] = 0.0f;
        for (int64_t row = 0; row < t; ++row) {
            const float *values = g + row * n;
            for (int64_t j = begin; j < end; ++j) sums[j] += values[j];
        }
    });
}

}  // namespace det
