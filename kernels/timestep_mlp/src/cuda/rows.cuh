// Products of a few rows, as fast as the weights can be read: each weight is read once and used for all rows.
#pragma once

#include "product.cuh"

namespace det {

constexpr int kSegment = 64;
// Lanes that read one line of a cache.
constexpr int kLineLanes = 8;
// Chunks that a lane asks L2 for at once: all that it doesn't read at first, in the operator's second layer.
constexpr int kCached = 36;

// Columns of a warp, chunks of the weights that a lane reads ahead of their use, and warps of a block. Measured on an H200
// for the operator's two layers: with more rows a warp takes more columns, so that it reads less of x than of the weights.
template <int kColumnsOf, int kChunksOf, int kWarpsOf>
struct RowPlan {
    static constexpr int kColumns = kColumnsOf, kChunks = kChunksOf, kWarps = kWarpsOf;
};

template <int kRows>
struct RowPlans {
    using Long = RowPlan<4, 6, 1>;
    using Short = RowPlan<4, 2, 4>;
};
template <>
struct RowPlans<4> {
    using Long = RowPlan<2, 6, 1>;
    using Short = RowPlan<2, 2, 4>;
};
template <>
struct RowPlans<3> {
    using Long = RowPlan<3, 6, 1>;
    using Short = RowPlan<2, 2, 4>;
};
template <>
struct RowPlans<2> {
    using Long = RowPlan<2, 6, 2>;
    using Short = RowPlan<1, 2, 4>;
};
template <>
struct RowPlans<1> {
    using Long = RowPlan<1, 6, 4>;
    using Short = RowPlan<1, 2, 4>;
};

// Has the line at an address brought nearer, into L2.
__device__ inline void cache(const float4 *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// y[t, n] for kRows rows: a warp some output columns, its lanes the contract's lanes.
template <int kRows, class Plan>
__global__ void __launch_bounds__(Plan::kWarps * 32)
    forward_rows(const float *__restrict__ x, const float *__restrict__ w, int64_t n, int64_t k, Result out) {
    constexpr int kColumns = Plan::kColumns, kChunks = Plan::kChunks;
    static_assert(kColumns * kRows <= kLanes, "a lane finishes one output");
    const int64_t first = (static_cast<int64_t>(blockIdx.x) * Plan::kWarps + threadIdx.x / 32) * kColumns;
    const int lane = threadIdx.x % 32;
    if (first >= n) return;
    const float4 *weights[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
        // A column over the edge computes again what its neighbour does, and stores nothing.
        weights[j] = reinterpret_cast<const float4 *>(w + (first + j < n ? first + j : first) * k) + lane;
    }
    const float4 *const left = reinterpret_cast<const float4 *>(x) + lane;
    const int chunks = static_cast<int>(k / kChunk);
    const int mine = (chunks + kLanes - 1 - lane) / kLanes;
    float sum[kColumns][kRows] = {};
    float4 read[kChunks][kColumns];

    const auto fetch = [&](int chunk, float4 *to) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) to[j] = __ldcs(weights[j] + chunk * kLanes);
    };
    const auto add = [&](int chunk, const float4 *b) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const float4 a = __ldg(left + static_cast<int64_t>(i) * chunks + chunk * kLanes);
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
                sum[j][i] = __fmaf_rn(a.x, b[j].x, sum[j][i]);
                sum[j][i] = __fmaf_rn(a.y, b[j].y, sum[j][i]);
                sum[j][i] = __fmaf_rn(a.z, b[j].z, sum[j][i]);
                sum[j][i] = __fmaf_rn(a.w, b[j].w, sum[j][i]);
            }
        }
    };

    const int64_t column = first + lane / kRows;
    const bool finishes = lane < kColumns * kRows && column < n;
    const float bias = finishes ? out.bias[column] : 0.0f;
    int chunk = 0;
    if (mine >= kChunks) {
#pragma unroll
        for (int u = 0; u < kChunks; ++u) fetch(u, read[u]);
        if (lane % kLineLanes == 0) {
#pragma unroll
            for (int u = kChunks; u < kChunks + kCached; ++u) {
                if (u < mine) {
#pragma unroll
                    for (int j = 0; j < kColumns; ++j) cache(weights[j] + u * kLanes);
                }
            }
        }
    }
    for (; chunk + kChunks <= mine; chunk += kChunks) {
        const bool more = chunk + 2 * kChunks <= mine;
#pragma unroll
        for (int u = 0; u < kChunks; ++u) {
            float4 b[kColumns];
#pragma unroll
            for (int j = 0; j < kColumns; ++j) b[j] = read[u][j];
            if (more) fetch(chunk + kChunks + u, read[u]);
            add(chunk + u, b);
        }
    }
    for (; chunk < mine; ++chunk) {
        float4 b[kColumns];
        fetch(chunk, b);
        add(chunk, b);
    }

    // The butterfly leaves the same sum in every lane: each finishes another output.
    float v = 0.0f;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            float total = sum[j][i];
#pragma unroll
            for (int offset = kLanes / 2; offset > 0; offset /= 2) {
                total = __fadd_rn(total, __shfl_xor_sync(~0u, total, offset));
            }
            if (lane == j * kRows + i) v = total;
        }
    }
    if (!finishes) return;
    const int64_t at = lane % kRows * n + column;
    v = __fadd_rn(bias, v);
    out.values[at] = out.activation == Activation::none ? v : activated(v, out.activation);
    if (out.pre != nullptr) out.pre[at] = v;
}

// Sums of one segment of n: partial[segment, t, k] for kRows rows. A thread owns four columns.
template <int kRows>
__global__ void __launch_bounds__(128)
    gradient_rows(const float *__restrict__ g, const float *__restrict__ w, int64_t n, int64_t k,
                  float *__restrict__ partial) {
    const int64_t column = (static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x) * 4;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * kSegment;
    if (column >= k) return;
    const int terms = static_cast<int>(min(static_cast<int64_t>(kSegment), n - first));
    float4 sum[kRows] = {};
    // Reads under way at once. On an H200 twice as many take the whole operator's kernels from 105 us to 98 at one row, and
    // from 110 to 134 at two.
    constexpr int kUnrolled = kRows == 1 ? 16 : 8;
#pragma unroll kUnrolled
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
        *reinterpret_cast<float4 *>(partial + (int64_t{blockIdx.y} * kRows + i) * k + column) = sum[i];
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
