// One blocked multiplication serves all three products, as on the CPU:
// out[i, j] = the sum of a[r, i] b[r, j] over r, cut into segments whose sums are combined in an order.
//
// Both operands lie in the order of summation. Blocks of threads own tiles of outputs, threads 4 x 4 patches of them; a
// sum lives in one register of one thread while its segment lasts. Operands come through shared memory, copied ahead by
// cp.async. What an order does between segments happens to all sums of a thread at once. No output's arithmetic depends
// on the tile it is in: tiles that reach over the edge compute what is never stored.
#pragma once

#include <stdint.h>

#include "../backend.h"
#include "../exponential.h"
#include "pack.cuh"

namespace det {

enum class Combine { chain, left, tree };

// expf as CUDA's own library has it.
struct DeviceExponential {
    __device__ float operator()(float x) const { return ::expf(x); }
};

__device__ inline float activated(float v, Activation activation) {
    return activation == Activation::silu ? silu(v, DeviceExponential()) : silu(v, NearestExponential());
}

struct Factors {
    const float *a, *b;      // (terms, rows), (terms, columns); rows of them aligned to 16 bytes
    int64_t a_leading, b_leading;
    int rows, columns;       // of the output
    int terms;
    int segment;             // terms of a segment: a multiple of kStep
    int segments_a_block;    // a block sums so many, and writes a partial sum if there are more
};

struct Result {
    float *values;           // (rows, columns), or one such matrix a part
    int64_t part;            // elements from one part's matrix to the next
    const float *bias;       // or nullptr
    float *pre;              // or nullptr
    Activation activation;
};

template <int kBytes>
__device__ inline void copy_ahead(float *to, const float *from, bool there) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const int bytes = there ? kBytes : 0;  // the rest becomes 0
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes));
}

__device__ inline void close_group() { asm volatile("cp.async.commit_group;"); }

template <int kOpen>
__device__ inline void wait_until_open() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kOpen));
}

// kRows x kColumns outputs a block, kThreadRows x kThreadColumns of them a thread. A warp is 4 threads high, 8 wide.
template <int kRowsOf, int kColumnsOf, int kThreadRowsOf, int kThreadColumnsOf, int kStagesOf, int kBlocksOf>
struct Shape {
    static constexpr int kRows = kRowsOf, kColumns = kColumnsOf, kThreadRows = kThreadRowsOf;
    static constexpr int kThreadColumns = kThreadColumnsOf, kStages = kStagesOf, kBlocks = kBlocksOf;
    static constexpr int kWarpRows = 4 * kThreadRows, kWarpColumns = 8 * kThreadColumns;
    static constexpr int kThreads = kRows * kColumns / (kThreadRows * kThreadColumns);
    static constexpr int kSums = kThreadRows * kThreadColumns;
    static constexpr int kStage = kStep * (kRows + kColumns);
    static_assert(kRows % kWarpRows == 0 && kColumns % kWarpColumns == 0, "whole warps");

    static int shared_bytes(bool pending) {
        return static_cast<int>(sizeof(float)) * (kStages * kStage + (pending ? kSums * kThreads : 0));
    }
};

template <int kWidth, int kThreads>
__device__ inline void copy_step(float *to, const float *from, int64_t leading, int first, int width, int terms) {
    constexpr int kPieces = kStep * kWidth / 4;
#pragma unroll
    for (int start = 0; start < kPieces; start += kThreads) {
        const int piece = start + threadIdx.x;
        if (kPieces % kThreads != 0 && piece >= kPieces) break;
        const int term = piece / (kWidth / 4), column = piece % (kWidth / 4) * 4;
        const bool there = term < terms && first + column < width;
        copy_ahead<16>(to + term * kWidth + column, there ? from + term * leading + first + column : from, there);
    }
}

template <class S, Combine kCombine>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) product(const Factors f, const Result out) {
    extern __shared__ __align__(16) float memory[];
    float *const hot = memory + S::kStages * S::kStage;

    const int tiles_down = (f.rows + S::kRows - 1) / S::kRows;
    const int row = blockIdx.x % tiles_down * S::kRows, column = blockIdx.x / tiles_down * S::kColumns;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int kWarpsDown = S::kRows / S::kWarpRows;
    const int my_row = warp % kWarpsDown * S::kWarpRows + lane / 8 * 4;
    const int my_column = warp / kWarpsDown * S::kWarpColumns + lane % 8 * 4;

    const int first_term = blockIdx.y * f.segments_a_block * f.segment;
    const int end_term = min(f.terms, first_term + f.segments_a_block * f.segment);
    const int steps = (end_term - first_term + kStep - 1) / kStep, segment_steps = f.segment / kStep;

    const auto fetch = [&](int step) {
        if (step < steps) {
            float *stage = memory + step % S::kStages * S::kStage;
            const int term = first_term + step * kStep, terms = min(kStep, end_term - term);
            copy_step<S::kRows, S::kThreads>(stage, f.a + term * f.a_leading, f.a_leading, row, f.rows, terms);
            copy_step<S::kColumns, S::kThreads>(stage + kStep * S::kRows, f.b + term * f.b_leading, f.b_leading, column,
                                                f.columns, terms);
        }
        close_group();
    };

    float sum[S::kSums] = {};
    float cold[kCombine == Combine::tree ? 4 : 1][S::kSums];  // levels 1 to 4 of the counter; level 0 is hot

    const auto add_term = [&](const float *a, const float *b) {
        float left[S::kThreadRows], right[S::kThreadColumns];
#pragma unroll
        for (int i = 0; i < S::kThreadRows; i += 4) {
            *reinterpret_cast<float4 *>(left + i) = *reinterpret_cast<const float4 *>(a + my_row + i * 4);
        }
#pragma unroll
        for (int j = 0; j < S::kThreadColumns; j += 4) {
            *reinterpret_cast<float4 *>(right + j) = *reinterpret_cast<const float4 *>(b + my_column + j * 8);
        }
#pragma unroll
        for (int i = 0; i < S::kThreadRows; ++i) {
#pragma unroll
            for (int j = 0; j < S::kThreadColumns; ++j) {
                float &one = sum[i * S::kThreadColumns + j];
                one = __fmaf_rn(left[i], right[j], one);
            }
        }
    };
    // Pending sums of level 0, as float4 with the block's threads side by side.
    const auto hot_at = [&](int i) -> float4 & { return reinterpret_cast<float4 *>(hot)[i * S::kThreads + threadIdx.x]; };
    const auto add_hot = [&] {
#pragma unroll
        for (int i = 0; i < S::kSums / 4; ++i) {
            const float4 one = hot_at(i);
            sum[4 * i] = __fadd_rn(one.x, sum[4 * i]);
            sum[4 * i + 1] = __fadd_rn(one.y, sum[4 * i + 1]);
            sum[4 * i + 2] = __fadd_rn(one.z, sum[4 * i + 2]);
            sum[4 * i + 3] = __fadd_rn(one.w, sum[4 * i + 3]);
        }
    };
    const auto keep_hot = [&] {
#pragma unroll
        for (int i = 0; i < S::kSums / 4; ++i) {
            hot_at(i) = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
        }
    };
    // After a segment: adds the pending sums that it completes, and unless it was the last keeps the sum and starts anew.
    const auto finish = [&](int done, bool last) {
        if constexpr (kCombine == Combine::left) {
            if (done > 0) add_hot();
            if (last) return;
            keep_hot();
        }
        if constexpr (kCombine == Combine::tree) {
            int level = 0;
            if (done & 1) {
                add_hot();
                for (level = 1; done >> level & 1; ++level) {
#pragma unroll
                    for (int i = 0; i < S::kSums; ++i) sum[i] = __fadd_rn(cold[level - 1][i], sum[i]);
                }
            }
            if (last) return;
            if (level == 0) {
                keep_hot();
            } else {
#pragma unroll
                for (int i = 0; i < S::kSums; ++i) cold[level - 1][i] = sum[i];
            }
        }
#pragma unroll
        for (int i = 0; i < S::kSums; ++i) sum[i] = 0.0f;
    };

    for (int step = 0; step < S::kStages - 1; ++step) fetch(step);
    int in_segment = 0, segment = 0;
    for (int step = 0; step < steps; ++step) {
        wait_until_open<S::kStages - 2>();
        __syncthreads();
        fetch(step + S::kStages - 1);
        const float *a = memory + step % S::kStages * S::kStage, *b = a + kStep * S::kRows;
        const int terms = end_term - first_term - step * kStep;
        if (terms >= kStep) {
#pragma unroll
            for (int term = 0; term < kStep; ++term) add_term(a + term * S::kRows, b + term * S::kColumns);
        } else {
#pragma unroll 1
            for (int term = 0; term < terms; ++term) add_term(a + term * S::kRows, b + term * S::kColumns);
        }
        if constexpr (kCombine != Combine::chain) {
            if (++in_segment == segment_steps || step == steps - 1) {
                finish(segment++, step == steps - 1);
                in_segment = 0;
            }
        }
    }

    const bool whole = f.columns % 4 == 0 && reinterpret_cast<uintptr_t>(out.values) % 16 == 0 && out.part % 4 == 0 &&
                       reinterpret_cast<uintptr_t>(out.pre) % 16 == 0;
    float *const values = out.values + blockIdx.y * out.part;
#pragma unroll
    for (int i = 0; i < S::kThreadRows; ++i) {
        const int r = row + my_row + i / 4 * 16 + i % 4;
        if (r >= f.rows) continue;
#pragma unroll
        for (int j = 0; j < S::kThreadColumns; j += 4) {
            const int c = column + my_column + j * 8;
            if (c >= f.columns) continue;
            float4 v, y;
            float *const each = &v.x, *const result = &y.x;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                each[e] = sum[i * S::kThreadColumns + j + e];
                if (out.bias != nullptr && c + e < f.columns) each[e] = __fadd_rn(out.bias[c + e], each[e]);
                result[e] = out.activation == Activation::none ? each[e] : activated(each[e], out.activation);
            }
            const int64_t at = static_cast<int64_t>(r) * f.columns + c;
            if (whole) {
                *reinterpret_cast<float4 *>(values + at) = y;
                if (out.pre != nullptr) *reinterpret_cast<float4 *>(out.pre + at) = v;
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (c + e >= f.columns) continue;
                    values[at + e] = result[e];
                    if (out.pre != nullptr) out.pre[at + e] = each[e];
                }
            }
        }
    }
}

}  // namespace det
