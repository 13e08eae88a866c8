// Products of a few rows, as fast as the weights can be read: each weight is read once and used for all rows.
#pragma once

#include "product.cuh"

namespace det {

constexpr int kRowWarps = 4, kSegment = 64;

// A warp takes two columns at once where it would else read more of x than of the weights.
template <int kRows>
constexpr int kWarpColumns = kRows >= 4 ? 2 : 1;

// y[t, n] for kRows rows: a warp an output column or two, its lanes the contract's lanes.
template <int kRows>
__global__ void __launch_bounds__(kRowWarps * 32)
    forward_rows(const float *__restrict__ x, const float *__restrict__ w, int64_t n, int64_t k, Result out) {
    constexpr int kColumns = kWarpColumns<kRows>;
    const int64_t first = (static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32) * kColumns;
    const int lane = threadIdx.x % 32;
    if (first >= n) return;
    const float4 *weights[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
        // A column over the edge computes again what its neighbour does, and stores nothing.
        weights[j] = reinterpret_cast<const float4 *>(w + (first + j < n ? first + j : first) * k);
    }
    const int chunks = static_cast<int>(k / kChunk);
    float sum[kColumns][kRows] = {};
#pragma unroll(kRows > 4 ? 2 : kRows > 1 ? 4 : 7)
    for (int chunk = lane; chunk < chunks; chunk += kLanes) {
        float4 b[kColumns];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) b[j] = __ldcs(weights[j] + chunk);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float4 a = __ldg(reinterpret_cast<const float4 *>(x + i * k) + chunk);
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
                sum[j][i] = __fmaf_rn(a.x, b[j].x, sum[j][i]);
                sum[j][i] = __fmaf_rn(a.y, b[j].y, sum[j][i]);
                sum[j][i] = __fmaf_rn(a.z, b[j].z, sum[j][i]);
                sum[j][i] = __fmaf_rn(a.w, b[j].w, sum[j][i]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
        const int64_t column = first + j;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int offset = kLanes / 2; offset > 0; offset /= 2) {
                sum[j][i] = __fadd_rn(sum[j][i], __shfl_xor_sync(~0u, sum[j][i], offset));
            }
            if (lane != 0 || column >= n) continue;
            const float v = __fadd_rn(out.bias[column], sum[j][i]);
            out.values[i * n + column] = out.activation == Activation::none ? v : activated(v, out.activation);
            if (out.pre != nullptr) out.pre[i * n + column] = v;
        }
    }
}

// Sums of one segment of n: partial[segment, t, k] for kRows rows. A thread owns four columns.
template <int kRows>
__global__ void __launch_bounds__(128)
    gradient_rows(const float *__restrict__ g, const float *__restrict__ w, int64_t n, int64_t k,
                  float *__restrict__ partial, int64_t part) {
    const int64_t column = (static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x) * 4;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * kSegment;
    if (column >= k) return;
    const int terms = static_cast<int>(min(static_cast<int64_t>(kSegment), n - first));
    float4 sum[kRows] = {};
#pragma unroll 8
    for (int term = 0; term < terms; ++term) {
        const float4 b = __ldcs(reinterpret_cast<const float4 *>(w + (first + term) * k + column));
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float a = __ldg(g + i * n + first + term);
            sum[i].x = __fmaf_rn(a, b.x, sum[i].x);
            sum[i].y = __fmaf_rn(a, b.y, sum[i].y);
            sum[i].z = __fmaf_rn(a, b.z, sum[i].z);
            sum[i].w = __fmaf_rn(a, b.w, sum[i].w);
        }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        *reinterpret_cast<float4 *>(partial + blockIdx.y * part + i * k + column) = sum[i];
    }
}

// out[i] = the sum of partial[0 .. parts, i]: left to right, or as a tree of neighbours.
template <Combine kCombine>
__global__ void combine(const float *__restrict__ partial, int parts, int64_t count, int64_t columns, Result out) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float v;
    if constexpr (kCombine == Combine::left) {
        v = partial[i];
#pragma unroll 8
        for (int p = 1; p < parts; ++p) v = __fadd_rn(v, partial[p * out.part + i]);
    } else {
        float pending[5];
        v = 0.0f;
#pragma unroll
        for (int p = 0; p < kLanes; ++p) {
            if (p >= parts) break;
            v = partial[p * out.part + i];
#pragma unroll
            for (int level = 0; level < 5; ++level) {
                if ((p >> level & 1) == 0) {
                    pending[level] = v;
                    break;
                }
                v = __fadd_rn(pending[level], v);
            }
        }
    }
    if (out.bias != nullptr) v = __fadd_rn(out.bias[i % columns], v);
    if (out.pre != nullptr) out.pre[i] = v;
    out.values[i] = out.activation == Activation::none ? v : activated(v, out.activation);
}

}  // namespace det
