// The ABI on a GPU: which kernels compute a product, in which tiles and how many parts. None of that changes a bit.
#include <type_traits>

#include "machine.cuh"
#include "pack.cuh"
#include "product.cuh"
#include "rows.cuh"

namespace det {
namespace {

constexpr int kThreads = 256;
// Rows up to which a product is computed without tiles.
constexpr int kFewRows = 8;
// Floats that partial sums may take.
constexpr int64_t kMostPartial = int64_t{1} << 28;

using Square = Shape<128, 128, 8, 8, 4, 2>;
using Half = Shape<64, 128, 8, 8, 4, 4>;
using Small = Shape<64, 64, 4, 8, 4, 4>;

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

template <class S>
int64_t tiles(int64_t rows, int64_t columns) {
    return pieces(rows, S::kRows) * pieces(columns, S::kColumns);
}

int64_t padded(int64_t count) { return pieces(count, 4) * 4; }

bool aligned(const float *values, int64_t columns) {
    return reinterpret_cast<uintptr_t>(values) % 16 == 0 && columns % 4 == 0;
}

cudaStream_t stream_of(const Where &where) { return static_cast<cudaStream_t>(where.stream); }

Status launched() { return outcome(cudaGetLastError(), "starting a kernel"); }

unsigned grid(int64_t count) { return static_cast<unsigned>(pieces(count, kThreads)); }

template <class Order>
Status packs(const float *values, int64_t rows, int64_t columns, int64_t all_columns, float filler, Order order,
             float *packed, cudaStream_t stream) {
    const int64_t leading = padded(rows), blocks = pieces(leading, kPackSide) * pieces(all_columns, kPackSide);
    pack<<<static_cast<unsigned>(blocks), dim3(kPackSide, kPackRows), 0, stream>>>(values, rows, columns, all_columns,
                                                                                filler, order, packed, leading);
    return launched();
}

template <class S, Combine kCombine>
Status launch(const Factors &f, const Result &out, int64_t parts, cudaStream_t stream) {
    const int bytes = S::shared_bytes(kCombine != Combine::chain && f.segments_a_block > 1);
    static OncePerDevice allowed;
    const Status status = allowed.ensure([] {
        return cudaFuncSetAttribute(product<S, kCombine>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    S::shared_bytes(kCombine != Combine::chain));
    });
    if (status != Status::ok) return status;
    const dim3 blocks(static_cast<unsigned>(tiles<S>(f.rows, f.columns)), static_cast<unsigned>(parts));
    product<S, kCombine><<<blocks, S::kThreads, bytes, stream>>>(f, out);
    return launched();
}

enum class Tiles { square, half, small };

// How a product is cut: into tiles, and its sum into parts whose sums are combined by another kernel.
struct Plan {
    Tiles tiles;
    int64_t parts;
};

template <Combine kCombine>
Status launch(const Plan &plan, const Factors &f, const Result &out, cudaStream_t stream) {
    switch (plan.tiles) {
        case Tiles::square:
            return launch<Square, kCombine>(f, out, plan.parts, stream);
        case Tiles::half:
            return launch<Half, kCombine>(f, out, plan.parts, stream);
        case Tiles::small:
            return launch<Small, kCombine>(f, out, plan.parts, stream);
    }
    return Status::failed;
}

// Tiles that are computed at once.
template <class S>
int64_t wave() {
    return int64_t{S::kBlocks} * multiprocessors();
}

// The plans' numbers are measured on an H200 (`nox -s bench -- kernel`): the last wave of blocks is seldom full, so that
// a sum is cut until there are several waves; small tiles fill the GPU with few rows, and keep lanes of few terms cheap.
Plan forward_plan(int64_t t, int64_t n, int64_t k) {
    if (lane_terms(k) <= 2 * kStep) return {Tiles::small, 1};
    Plan plan{t <= 256 ? Tiles::small : Tiles::square, 1};
    const bool small = plan.tiles == Tiles::small;
    const int64_t blocks = small ? tiles<Small>(t, n) : tiles<Square>(t, n);
    const int64_t wanted = small ? 4 * wave<Small>() : 8 * wave<Square>();
    while (plan.parts < kLanes && blocks * plan.parts < wanted && 2 * plan.parts * t * n <= kMostPartial) plan.parts *= 2;
    return plan;
}

Plan input_plan(int64_t t, int64_t n, int64_t k) {
    const int64_t blocks = tiles<Small>(t, k), segments = pieces(n, kSegment);
    if (blocks > wave<Small>()) return {Tiles::half, 1};
    return {Tiles::small, 2 * blocks < wave<Small>() && segments * t * k <= kMostPartial ? segments : 1};
}

Plan weight_plan(int64_t t, int64_t n, int64_t k) {
    return {t <= 128 || tiles<Half>(n, k) < wave<Half>() ? Tiles::small : Tiles::square, 1};
}

// Calls work with t, at most kFewRows, as a constant.
template <int kRows = kFewRows, class Work>
void with_rows(int64_t t, const Work &work) {
    if constexpr (kRows > 1) {
        if (t < kRows) return with_rows<kRows - 1>(t, work);
    }
    work(std::integral_constant<int, kRows>());
}

template <int kRows, class Plan>
void start_rows(const float *x, const float *w, const Result &out, int64_t n, int64_t k, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(pieces(n, Plan::kWarps * Plan::kColumns));
    forward_rows<kRows, Plan><<<blocks, Plan::kWarps * 32, 0, stream>>>(x, w, n, k, out);
}

Status forward_few(const float *x, const float *w, const Result &out, int64_t t, int64_t n, int64_t k,
                   cudaStream_t stream) {
    with_rows(t, [=](auto rows) {
        using Plans = RowPlans<rows()>;
        if (lane_terms(k) < kChunk * Plans::Long::kChunks) {
            start_rows<rows(), typename Plans::Short>(x, w, out, n, k, stream);
        } else {
            start_rows<rows(), typename Plans::Long>(x, w, out, n, k, stream);
        }
    });
    return launched();
}

template <Combine kCombine>
Status combined(const float *partial, int64_t parts, int64_t rows, int64_t columns, Result out, cudaStream_t stream) {
    out.part = rows * columns;
    combine<kCombine><<<grid(rows * columns), kThreads, 0, stream>>>(partial, static_cast<int>(parts), rows * columns,
                                                                     columns, out);
    return launched();
}

Status gradient_few(const float *g, const float *w, float *dx, int64_t t, int64_t n, int64_t k, cudaStream_t stream) {
    const int64_t segments = pieces(n, kSegment);
    // Segments are as many as a grid is high, at most.
    constexpr int64_t kHighest = 65535;
    if (segments > kHighest) return outcome(cudaErrorInvalidValue, "N is too large for a few rows");
    const Scratch partial(segments * t * k, stream);
    if (partial.status() != Status::ok) return partial.status();
    with_rows(t, [&](auto rows) {
        const dim3 blocks(static_cast<unsigned>(pieces(k, 512)), static_cast<unsigned>(segments));
        gradient_rows<rows()><<<blocks, 128, 0, stream>>>(g, w, n, k, partial.data());
    });
    if (const Status status = launched(); status != Status::ok) return status;
    return combined<Combine::left>(partial.data(), segments, t, k, Result{dx}, stream);
}

// A matrix with rows aligned to 16 bytes: itself, or a copy.
class Aligned {
public:
    Aligned(const float *values, int64_t rows, int64_t columns, cudaStream_t stream)
        : leading(padded(columns)), copy_(aligned(values, columns) ? 1 : rows * padded(columns), stream),
          data(aligned(values, columns) ? values : copy_.data()) {
        status = copy_.status();
        if (status != Status::ok || data == values) return;
        align_rows<<<grid(rows * leading), kThreads, 0, stream>>>(values, rows, columns, copy_.data(), leading);
        status = launched();
    }

    const int64_t leading;

private:
    const Scratch copy_;

public:
    const float *const data;
    Status status;
};

template <class Element>
__global__ void map(float *__restrict__ out, int64_t count, Element element) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        out[i] = element(i);
    }
}

template <class Element>
Status maps(float *out, int64_t count, const Where &where, Element element) {
    const int64_t most = 16 * multiprocessors();
    const int64_t blocks = pieces(count, kThreads) < most ? pieces(count, kThreads) : most;
    map<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(where)>>>(out, count, element);
    return launched();
}

template <class Exponential>
struct SiluBackward {
    const float *g, *z;
    __device__ float operator()(int64_t i) const { return silu_backward(g[i], z[i], Exponential()); }
};

template <class Exponential>
struct Exponentials {
    const float *x;
    __device__ float operator()(int64_t i) const { return Exponential()(x[i]); }
};

constexpr int kAhead = 32;

// A thread a column, rows read ahead: the additions are one chain, the reads are not.
__global__ void __launch_bounds__(32) column_sums(const float *__restrict__ g, float *__restrict__ db, int64_t t,
                                                  int64_t n) {
    const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
    if (column >= n) return;
    float sum = 0.0f;
    int64_t row = 0;
    for (; row + kAhead <= t; row += kAhead) {
        float values[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) values[i] = __ldg(g + (row + i) * n + column);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) sum = __fadd_rn(sum, values[i]);
    }
    for (; row < t; ++row) sum = __fadd_rn(sum, __ldg(g + row * n + column));
    db[column] = sum;
}

}  // namespace

Status forward(const float *x, const float *w, const float *bias, float *y, float *pre, int64_t t, int64_t n, int64_t k,
               Activation activation, const Where &where) {
    const cudaStream_t stream = stream_of(where);
    const Result out{y, 0, bias, pre, activation};
    if (t <= kFewRows) return forward_few(x, w, out, t, n, k, stream);
    const Plan plan = forward_plan(t, n, k);
    const int64_t lane = lane_terms(k), terms = lane * kLanes;
    if (terms > INT32_MAX) return outcome(cudaErrorInvalidValue, "K is too large");
    const Scratch scratch(terms * (padded(t) + padded(n)) + (plan.parts > 1 ? plan.parts * t * n : 0), stream);
    if (scratch.status() != Status::ok) return scratch.status();
    float *const a = scratch.data(), *const b = a + terms * padded(t), *const partial = b + terms * padded(n);
    Status status = packs(x, t, k, terms, -0.0f, LaneOrder{lane}, a, stream);
    if (status == Status::ok) status = packs(w, n, k, terms, 0.0f, LaneOrder{lane}, b, stream);
    if (status != Status::ok) return status;
    const Factors f{a, b, padded(t), padded(n), static_cast<int>(t), static_cast<int>(n),
                    static_cast<int>(terms), static_cast<int>(lane), static_cast<int>(kLanes / plan.parts)};
    if (plan.parts == 1) return launch<Combine::tree>(plan, f, out, stream);
    const Result sums{partial, t * n, nullptr, nullptr, Activation::none};
    status = launch<Combine::tree>(plan, f, sums, stream);
    return status == Status::ok ? combined<Combine::tree>(partial, plan.parts, t, n, out, stream) : status;
}

Status input_gradient(const float *g, const float *w, float *dx, int64_t t, int64_t n, int64_t k, const Where &where) {
    const cudaStream_t stream = stream_of(where);
    if (t <= kFewRows) return gradient_few(g, w, dx, t, n, k, stream);
    const Plan plan = input_plan(t, n, k);
    const Scratch scratch(n * padded(t) + (plan.parts > 1 ? plan.parts * t * k : 0), stream);
    if (scratch.status() != Status::ok) return scratch.status();
    float *const a = scratch.data(), *const partial = a + n * padded(t);
    Status status = packs(g, t, n, n, 0.0f, SameOrder(), a, stream);
    if (status != Status::ok) return status;
    const Factors f{a, w, padded(t), k, static_cast<int>(t), static_cast<int>(k), static_cast<int>(n), kSegment,
                    static_cast<int>(plan.parts > 1 ? 1 : pieces(n, kSegment))};
    if (plan.parts == 1) return launch<Combine::left>(plan, f, Result{dx}, stream);
    status = launch<Combine::left>(plan, f, Result{partial, t * k}, stream);
    return status == Status::ok ? combined<Combine::left>(partial, plan.parts, t, k, Result{dx}, stream) : status;
}

Status weight_gradient(const float *g, const float *x, float *dw, int64_t t, int64_t n, int64_t k, const Where &where) {
    const cudaStream_t stream = stream_of(where);
    const Aligned a(g, t, n, stream);
    if (a.status != Status::ok) return a.status;
    const Factors f{a.data, x, a.leading, k, static_cast<int>(n), static_cast<int>(k), static_cast<int>(t),
                    static_cast<int>(pieces(t, kStep) * kStep), 1};
    return launch<Combine::chain>(weight_plan(t, n, k), f, Result{dw}, stream);
}

Status bias_gradient(const float *g, float *db, int64_t t, int64_t n, const Where &where) {
    column_sums<<<static_cast<unsigned>(pieces(n, 32)), 32, 0, stream_of(where)>>>(g, db, t, n);
    return launched();
}

Status silu_backward(const float *g, const float *z, float *dz, int64_t count, Activation activation,
                     const Where &where) {
    if (activation == Activation::silu) return maps(dz, count, where, SiluBackward<DeviceExponential>{g, z});
    return maps(dz, count, where, SiluBackward<NearestExponential>{g, z});
}

Status expf(const float *x, float *y, int64_t count, Activation activation, const Where &where) {
    if (activation == Activation::silu) return maps(y, count, where, Exponentials<DeviceExponential>{x});
    return maps(y, count, where, Exponentials<NearestExponential>{x});
}

}  // namespace det
