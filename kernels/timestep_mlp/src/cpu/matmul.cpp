// One blocked multiplication serves all three products: out[i, j] = the sum of a[i, r] b[j, r] over r, in an order.
//
// The terms of both operands are packed as they are summed, one after the other. A tile of 6 x 16 outputs then runs
// through a segment of the order with its sums in registers, one fma a term and output; what an order does between
// segments happens to whole tiles. No output's arithmetic depends on the tile it is in: rows and columns that a tile
// lacks are packed as zeros and never stored.
#include "matmul.h"

#include <string.h>

#include "buffer.h"
#include "order.h"
#include "parallel.h"

namespace det {
namespace {

// 6 x 16 sums, 16 values of b and one of a fill the 16 registers of 8 floats that x86-64-v3 has.
constexpr int64_t kTileRows = 6, kTileColumns = 16, kVector = 8;
constexpr int64_t kTile = kTileRows * kTileColumns;
// Tiles a block: the segments of a block's operands stay in the second-level cache, together with its sums.
constexpr int64_t kBlockTileRows = 16, kBlockTileColumns = 8;
constexpr int64_t kBlockTiles = kBlockTileRows * kBlockTileColumns;
// Rows of a batch that are packed at a time, whole blocks of them: it bounds the memory of a call.
constexpr int64_t kBatch = kBlockTileRows * kTileRows * 42;
// Sums of 32 lanes that are pending at most in a binary counter.
constexpr int64_t kPending = 5;

using Vector = float __attribute__((vector_size(kVector * sizeof(float))));

inline Vector load(const float *from) {
    Vector result;
    memcpy(&result, from, sizeof result);
    return result;
}

inline Vector fma(Vector a, Vector b, Vector c) {
#if defined(__clang__)
    return __builtin_elementwise_fma(a, b, c);
#else
    Vector result;
    for (int64_t i = 0; i < kVector; ++i) result[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return result;
#endif
}

inline Vector spread(float value) { return Vector{value, value, value, value, value, value, value, value}; }

constexpr int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// An operand: `count` outputs have a row or column of it each, with one value a term of the reduction.
struct Operand {
    const float *values;
    int64_t count;
    int64_t output_stride, term_stride;
};

struct Output {
    float *values;
    int64_t rows, columns;
    const float *bias = nullptr;  // a value a column, added once to the finished sum
    bool resumed = false;         // a chain goes on from the values that are there
};

// The sums of one tile. It lives in registers, or in kTile floats of memory.
struct Tile {
    Vector sum[kTileRows][2];

    void clear() { memset(sum, 0, sizeof sum); }
    void load_from(const float *memory) { memcpy(sum, memory, sizeof sum); }
    void store_to(float *memory) const { memcpy(memory, sum, sizeof sum); }

    void add(const float *memory) {
        for (int64_t i = 0; i < kTileRows; ++i) {
            for (int64_t j = 0; j < 2; ++j) sum[i][j] = load(memory + i * kTileColumns + j * kVector) + sum[i][j];
        }
    }

    void accumulate(const float *a, const float *b, int64_t terms) {
        for (int64_t term = 0; term < terms; ++term, a += kTileRows, b += kTileColumns) {
            const Vector first = load(b), second = load(b + kVector);
            for (int64_t i = 0; i < kTileRows; ++i) {
                const Vector value = spread(a[i]);
                sum[i][0] = fma(value, first, sum[i][0]);
                sum[i][1] = fma(value, second, sum[i][1]);
            }
        }
    }
};

// Packs one tile of an operand: for each position of the order kWidth values, one an output.
template <int64_t kWidth>
void pack(const Operand &operand, const Order &order, int64_t tile, float *packed) {
    const int64_t width = smaller(kWidth, operand.count - tile * kWidth);
    const float *first = operand.values + tile * kWidth * operand.output_stride;
    float *out = packed + tile * kWidth * order.terms();
    if (width < kWidth) memset(out, 0, sizeof(float) * kWidth * order.terms());
    for (int64_t term = 0; term < order.terms(); ++term) {
        const float *from = first + term * operand.term_stride;
        float *to = out + order.place(term) * kWidth;
        for (int64_t i = 0; i < width; ++i) to[i] = from[i * operand.output_stride];
    }
}

class Product {
public:
    Product(const Operand &a, const Operand &b, Combine combine, int64_t terms, const Output &out, int32_t threads)
        : a_(a), b_(b), combine_(combine), order_(combine, terms), out_(out), threads_(threads),
          row_tiles_(pieces(a.count, kTileRows)), column_tiles_(pieces(b.count, kTileColumns)),
          packed_a_(row_tiles_ * kTileRows * terms), packed_b_(column_tiles_ * kTileColumns * terms),
          sums_(workers(blocks(), threads) * kBlockTiles * kTileMemory) {}

    Status compute() {
        if (!order_.valid() || !packed_a_.valid() || !packed_b_.valid() || !sums_.valid()) return Status::no_memory;
        const int64_t tiles = row_tiles_ + column_tiles_;
        const Status packed = parallel(tiles, threads_, [this](int32_t, int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                if (i < row_tiles_) {
                    pack<kTileRows>(a_, order_, i, packed_a_.data());
                } else {
                    pack<kTileColumns>(b_, order_, i - row_tiles_, packed_b_.data());
                }
            }
        });
        if (packed != Status::ok) return packed;
        return parallel(blocks(), threads_, [this](int32_t worker, int64_t begin, int64_t end) {
            float *sums = sums_.data() + worker * kBlockTiles * kTileMemory;
            for (int64_t i = begin; i < end; ++i) multiply(block(i), sums);
        });
    }

private:
    static constexpr int64_t kTileMemory = kPending * kTile;

    // A range of tiles.
    struct Block {
        int64_t row, row_end, column, column_end;
    };

    int64_t block_rows() const { return pieces(row_tiles_, kBlockTileRows); }
    int64_t blocks() const { return block_rows() * pieces(column_tiles_, kBlockTileColumns); }

    Block block(int64_t index) const {
        const int64_t row = index % block_rows() * kBlockTileRows, column = index / block_rows() * kBlockTileColumns;
        return {row, smaller(row + kBlockTileRows, row_tiles_), column,
                smaller(column + kBlockTileColumns, column_tiles_)};
    }

    void multiply(const Block &block, float *sums) {
        if (out_.resumed) each_tile(block, sums, [this](int64_t i, int64_t j, float *memory) { fetch(i, j, memory); });
        for (int64_t segment = 0; segment < order_.segments(); ++segment) {
            const int64_t position = order_.first(segment), terms = order_.first(segment + 1) - position;
            each_tile(block, sums, [=](int64_t i, int64_t j, float *memory) {
                const float *a = packed_a_.data() + (i * order_.terms() + position) * kTileRows;
                const float *b = packed_b_.data() + (j * order_.terms() + position) * kTileColumns;
                Tile tile;
                const bool goes_on = combine_ == Combine::chain && (segment > 0 || out_.resumed);
                goes_on ? tile.load_from(memory) : tile.clear();
                tile.accumulate(a, b, terms);
                finish(tile, segment, memory);
            });
        }
        each_tile(block, sums, [this](int64_t i, int64_t j, float *memory) { deliver(i, j, memory); });
    }

    template <class Work>
    static void each_tile(const Block &block, float *sums, const Work &work) {
        for (int64_t j = block.column; j < block.column_end; ++j) {
            for (int64_t i = block.row; i < block.row_end; ++i, sums += kTileMemory) work(i, j, sums);
        }
    }

    // Combines a segment's sums with those before it. At the end the whole is in the memory's first tile.
    void finish(Tile &tile, int64_t segment, float *memory) const {
        if (combine_ == Combine::left && segment > 0) tile.add(memory);
        if (combine_ == Combine::tree) {
            // A binary counter: one pending sum for each set bit of the number of segments done; each carry combines.
            int64_t pending = __builtin_popcountll(segment);
            for (int64_t carry = segment; carry & 1; carry >>= 1) tile.add(memory + --pending * kTile);
            memory += pending * kTile;
        }
        tile.store_to(memory);
    }

    void fetch(int64_t i, int64_t j, float *memory) const {
        memset(memory, 0, sizeof(float) * kTile);
        each_row(i, j, [=](const float *out, int64_t row, int64_t, int64_t columns) {
            memcpy(memory + row * kTileColumns, out, sizeof(float) * columns);
        });
    }

    void deliver(int64_t i, int64_t j, const float *memory) const {
        each_row(i, j, [=](float *out, int64_t row, int64_t first, int64_t columns) {
            const float *sums = memory + row * kTileColumns;
            for (int64_t c = 0; c < columns; ++c) out[c] = out_.bias ? out_.bias[first + c] + sums[c] : sums[c];
        });
    }

    // The part of each of a tile's rows that the output has.
    template <class Work>
    void each_row(int64_t i, int64_t j, const Work &work) const {
        const int64_t rows = smaller(kTileRows, out_.rows - i * kTileRows);
        const int64_t first = j * kTileColumns, columns = smaller(kTileColumns, out_.columns - first);
        for (int64_t row = 0; row < rows; ++row) {
            work(out_.values + (i * kTileRows + row) * out_.columns + first, row, first, columns);
        }
    }

    const Operand a_, b_;
    const Combine combine_;
    const Order order_;
    const Output out_;
    const int32_t threads_;
    const int64_t row_tiles_, column_tiles_;
    Buffer<float> packed_a_, packed_b_, sums_;
};

// Calls work(first row, rows) for each part of a batch of t rows until one fails.
template <class Work>
Status each_batch(int64_t t, const Work &work) {
    Status status = Status::ok;
    for (int64_t row = 0; row < t && status == Status::ok; row += kBatch) status = work(row, smaller(kBatch, t - row));
    return status;
}

}  // namespace

Status forward(const float *x, const float *w, const float *bias, float *y, int64_t t, int64_t n, int64_t k,
               int32_t threads) {
    return each_batch(t, [=](int64_t row, int64_t rows) {
        const Operand a{x + row * k, rows, k, 1}, b{w, n, k, 1};
        const Output out{y + row * n, rows, n, bias};
        return Product(a, b, Combine::tree, k, out, threads).compute();
    });
}

Status input_gradient(const float *g, const float *w, float *dx, int64_t t, int64_t n, int64_t k, int32_t threads) {
    return each_batch(t, [=](int64_t row, int64_t rows) {
        const Operand a{g + row * n, rows, n, 1}, b{w, k, 1, k};
        const Output out{dx + row * k, rows, k};
        return Product(a, b, Combine::left, n, out, threads).compute();
    });
}

Status weight_gradient(const float *g, const float *x, float *dw, int64_t t, int64_t n, int64_t k, int32_t threads) {
    return each_batch(t, [=](int64_t row, int64_t rows) {
        const Operand a{g + row * n, n, 1, n}, b{x + row * k, k, 1, k};
        const Output out{dw, n, k, nullptr, row > 0};
        return Product(a, b, Combine::chain, rows, out, threads).compute();
    });
}

}  // namespace det
