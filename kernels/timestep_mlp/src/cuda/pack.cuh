// Operands in the order of summation: (terms, outputs), so that a product reads whole rows of them.
#pragma once

#include <math.h>
#include <stdint.h>

namespace det {

constexpr int kLanes = 32, kChunk = 4;

// Terms that a product takes at a time; a lane is padded to whole steps.
constexpr int kStep = 8;

// Terms of one lane of a row of k, padded.
__host__ __device__ inline int64_t lane_terms(int64_t k) {
    const int64_t chunks = (k / kChunk + kLanes - 1) / kLanes;
    return (chunks * kChunk + kStep - 1) / kStep * kStep;
}

// Where a column of a row goes. Lanes are visited in bit-reversed order: their butterfly is then a binary counter.
struct LaneOrder {
    int64_t terms;  // lane_terms(k)

    __device__ int64_t operator()(int64_t column) const {
        const int64_t chunk = column / kChunk;
        const int64_t lane = __brev(static_cast<unsigned>(chunk % kLanes)) >> 27;
        return lane * terms + chunk / kLanes * kChunk + column % kChunk;
    }
};

struct SameOrder {
    __device__ int64_t operator()(int64_t column) const { return column; }
};

constexpr int kPackSide = 32, kPackRows = 8;

// packed[place(column), row] = values[row, column]; columns from `columns` to `all_columns` hold `filler`, and rows from
// `rows` to `leading` hold 0. A term of -0 times +0 leaves every sum as it is, -0 too: that is what pads a lane.
template <class Order>
__global__ void __launch_bounds__(kPackSide *kPackRows)
    pack(const float *__restrict__ values, int64_t rows, int64_t columns, int64_t all_columns, float filler, Order place,
         float *__restrict__ packed, int64_t leading) {
    __shared__ float tile[kPackSide][kPackSide + 1];
    const int64_t across = (all_columns + kPackSide - 1) / kPackSide;
    const int64_t first_row = blockIdx.x / across * kPackSide, first_column = blockIdx.x % across * kPackSide;
    for (int i = threadIdx.y; i < kPackSide; i += kPackRows) {
        const int64_t row = first_row + i, column = first_column + threadIdx.x;
        float value = 0.0f;
        if (row < rows) value = column < columns ? values[row * columns + column] : filler;
        tile[i][threadIdx.x] = value;
    }
    __syncthreads();
    for (int i = threadIdx.y; i < kPackSide; i += kPackRows) {
        const int64_t column = first_column + i, row = first_row + threadIdx.x;
        if (column < all_columns && row < leading) packed[place(column) * leading + row] = tile[threadIdx.x][i];
    }
}

// Rows one after the other, padded with zeros to `leading`: for matrices whose rows are not aligned to 16 bytes.
static __global__ void align_rows(const float *__restrict__ values, int64_t rows, int64_t columns, float *__restrict__ aligned,
                           int64_t leading) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= rows * leading) return;
    const int64_t column = i % leading;
    aligned[i] = column < columns ? values[i / leading * columns + column] : 0.0f;
}

}  // namespace det
