// The C ABI: arguments are checked here, before anything is computed, and errors are put in words.
#include <stdarg.h>
#include <stdio.h>

#include "backend.h"
#include "det_linear.h"
#include "status.h"

namespace {

thread_local char last_error[240] = "";

__attribute__((format(printf, 2, 3))) int32_t fail(int32_t code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return code;
}

int32_t answer(det::Status status) {
    switch (status) {
        case det::Status::ok:
            return DET_LINEAR_OK;
        case det::Status::no_memory:
            return fail(DET_LINEAR_NO_MEMORY, "there is not enough memory");
        case det::Status::no_thread:
            return fail(DET_LINEAR_NO_THREAD, "the system would not start another thread; ask for fewer threads");
        case det::Status::failed:
            return fail(DET_LINEAR_FAILED, "%s", det::failure());
    }
    __builtin_unreachable();
}

enum class Use { read, written };

// A matrix argument. `chunked` rows are cut into chunks of 16 bytes.
struct Matrix {
    const char *name;
    const float *values;
    int64_t rows, columns;
    Use use = Use::read;
    bool chunked = false;

    uintptr_t begin() const { return reinterpret_cast<uintptr_t>(values); }
    uintptr_t end() const { return begin() + static_cast<uintptr_t>(rows * columns) * sizeof(float); }
    bool overlaps(const Matrix &other) const { return begin() < other.end() && other.begin() < end(); }
};

int32_t check_matrix(const Matrix &matrix) {
    // More than a process can address: sizes in bytes stay far from overflow.
    constexpr int64_t kMost = int64_t{1} << 45;
    int64_t count;
    if (__builtin_mul_overflow(matrix.rows, matrix.columns, &count) || count > kMost) {
        return fail(DET_LINEAR_BAD_ARGUMENT, "%s would have more elements than fit in memory", matrix.name);
    }
    if (matrix.values == nullptr) return fail(DET_LINEAR_BAD_ARGUMENT, "%s is null", matrix.name);
    const unsigned alignment = matrix.chunked ? 16 : alignof(float);
    if (matrix.begin() % alignment != 0) {
        return fail(DET_LINEAR_BAD_ARGUMENT, "%s is not aligned to %u bytes", matrix.name, alignment);
    }
    return DET_LINEAR_OK;
}

int32_t check_size(const char *name, int64_t size, int64_t multiple = 1) {
    if (size <= 0) return fail(DET_LINEAR_BAD_ARGUMENT, "%s is %lld; it must be positive", name, (long long)size);
    if (size % multiple == 0) return DET_LINEAR_OK;
    return fail(DET_LINEAR_BAD_ARGUMENT, "%s is %lld; it must be a multiple of %lld", name, (long long)size,
                (long long)multiple);
}

int32_t check_sizes(int64_t t, int64_t n) {
    const int32_t code = check_size("T", t);
    return code ? code : check_size("N", n);
}

int32_t check_sizes(int64_t t, int64_t n, int64_t k) {
    const int32_t code = check_sizes(t, n);
    return code ? code : check_size("K", k, 4);
}

template <size_t kCount>
int32_t check(const Matrix (&matrices)[kCount], const det::Where &where) {
    det::Given given[kCount];
    int64_t longest = 0;
    for (size_t i = 0; i < kCount; ++i) {
        if (const int32_t code = check_matrix(matrices[i])) return code;
        given[i] = {matrices[i].name, matrices[i].values};
        if (matrices[i].rows > longest) longest = matrices[i].rows;
        if (matrices[i].columns > longest) longest = matrices[i].columns;
    }
    for (const Matrix &one : matrices) {
        for (const Matrix &other : matrices) {
            if (&one != &other && one.use == Use::written && one.overlaps(other)) {
                return fail(DET_LINEAR_BAD_ARGUMENT, "%s is written and overlaps %s", one.name, other.name);
            }
        }
    }
    const char *words = det::refusal(where, given, kCount, longest);
    return words ? fail(DET_LINEAR_BAD_ARGUMENT, "%s", words) : DET_LINEAR_OK;
}

int32_t check_silu(int32_t activation) {
    if (activation == DET_LINEAR_ACTIVATION_SILU || activation == DET_LINEAR_ACTIVATION_SILU_PORTABLE) return 0;
    return fail(DET_LINEAR_BAD_ARGUMENT, "activation is %d; it must be 1 (SiLU) or 2 (portable SiLU)", activation);
}

int32_t check_mlp(int64_t t, int64_t k, int64_t h, int64_t n, int32_t activation) {
    if (const int32_t code = check_sizes(t, n, k)) return code;
    if (const int32_t code = check_size("H", h, 4)) return code;
    return check_silu(activation);
}

}  // namespace

const char *det_linear_contract(void) { return "h3-det-linear-v1"; }

int32_t det_linear_abi_version(void) { return DET_LINEAR_ABI_VERSION; }

const char *det_linear_device(void) { return det::device(); }

const char *det_linear_unavailable(void) { return det::unavailable(); }

const char *det_linear_last_error(void) { return last_error; }

int32_t det_linear_forward(const float *x, const float *w, const float *bias, float *y, float *pre, int64_t t,
                           int64_t n, int64_t k, int32_t activation, int32_t threads, void *stream) {
    const det::Where where{threads, stream};
    if (const int32_t code = check_sizes(t, n, k)) return code;
    const Matrix given_x{"x", x, t, k, Use::read, true}, given_w{"w", w, n, k, Use::read, true};
    const Matrix given_bias{"bias", bias, 1, n}, given_y{"y", y, t, n, Use::written};
    if (activation == DET_LINEAR_ACTIVATION_NONE) {
        if (pre != nullptr) return fail(DET_LINEAR_BAD_ARGUMENT, "pre is given, but there is no activation");
        if (const int32_t code = check({given_x, given_w, given_bias, given_y}, where)) return code;
    } else {
        if (const int32_t code = check_silu(activation)) return code;
        const Matrix given_pre{"pre", pre, t, n, Use::written};
        if (const int32_t code = check({given_x, given_w, given_bias, given_y, given_pre}, where)) return code;
    }
    return answer(det::forward(x, w, bias, y, pre, t, n, k, static_cast<det::Activation>(activation), where));
}

int32_t det_linear_input_gradient(const float *g, const float *w, float *dx, int64_t t, int64_t n, int64_t k,
                                  int32_t threads, void *stream) {
    const det::Where where{threads, stream};
    if (const int32_t code = check_sizes(t, n, k)) return code;
    const Matrix matrices[] = {
        {"g", g, t, n}, {"w", w, n, k, Use::read, true}, {"dx", dx, t, k, Use::written, true}};
    if (const int32_t code = check(matrices, where)) return code;
    return answer(det::input_gradient(g, w, dx, t, n, k, where));
}

int32_t det_linear_weight_gradient(const float *g, const float *x, float *dw, int64_t t, int64_t n, int64_t k,
                                   int32_t threads, void *stream) {
    const det::Where where{threads, stream};
    if (const int32_t code = check_sizes(t, n, k)) return code;
    const Matrix matrices[] = {
        {"g", g, t, n}, {"x", x, t, k, Use::read, true}, {"dw", dw, n, k, Use::written, true}};
    if (const int32_t code = check(matrices, where)) return code;
    return answer(det::weight_gradient(g, x, dw, t, n, k, where));
}

int32_t det_linear_bias_gradient(const float *g, float *db, int64_t t, int64_t n, int32_t threads, void *stream) {
    const det::Where where{threads, stream};
    if (const int32_t code = check_sizes(t, n)) return code;
    const Matrix matrices[] = {{"g", g, t, n}, {"db", db, 1, n, Use::written}};
    if (const int32_t code = check(matrices, where)) return code;
    return answer(det::bias_gradient(g, db, t, n, where));
}

int32_t det_linear_silu_backward(const float *g, const float *z, float *dz, int64_t t, int64_t n, int32_t activation,
                                 int32_t threads, void *stream) {
    const det::Where where{threads, stream};
    if (const int32_t code = check_sizes(t, n)) return code;
    if (const int32_t code = check_silu(activation)) return code;
    const Matrix matrices[] = {{"g", g, t, n}, {"z", z, t, n}, {"dz", dz, t, n, Use::written}};
    if (const int32_t code = check(matrices, where)) return code;
    return answer(det::silu_backward(g, z, dz, t * n, static_cast<det::Activation>(activation), where));
}

int32_t det_linear_mlp_forward(const float *x, const float *w1, const float *b1, const float *w2, const float *b2,
                               float *z, float *hidden, float *y, int64_t t, int64_t k, int64_t h, int64_t n,
                               int32_t activation, int32_t threads, void *stream) {
    const det::Where where{threads, stream};
    if (const int32_t code = check_mlp(t, k, h, n, activation)) return code;
    const Matrix matrices[] = {{"x", x, t, k, Use::read, true},   {"w1", w1, h, k, Use::read, true},
                               {"b1", b1, 1, h},                  {"w2", w2, n, h, Use::read, true},
                               {"b2", b2, 1, n},                  {"z", z, t, h, Use::written},
                               {"hidden", hidden, t, h, Use::written, true}, {"y", y, t, n, Use::written}};
    if (const int32_t code = check(matrices, where)) return code;
    const auto silu = static_cast<det::Activation>(activation);
    det::Status status = det::forward(x, w1, b1, hidden, z, t, h, k, silu, where);
    if (status == det::Status::ok) {
        status = det::forward(hidden, w2, b2, y, nullptr, t, n, h, det::Activation::none, where);
    }
    return answer(status);
}

int32_t det_linear_mlp_backward(const float *g, const float *x, const float *w1, const float *w2, const float *z,
                                const float *hidden, float *dx, float *dw1, float *db1, float *dw2, float *db2,
                                float *dhidden, float *dz, int64_t t, int64_t k, int64_t h, int64_t n,
                                int32_t activation, int32_t threads, void *stream) {
    const det::Where where{threads, stream};
    if (const int32_t code = check_mlp(t, k, h, n, activation)) return code;
    const Matrix matrices[] = {
        {"g", g, t, n},
        {"x", x, t, k, Use::read, true},
        {"w1", w1, h, k, Use::read, true},
        {"w2", w2, n, h, Use::read, true},
        {"z", z, t, h},
        {"hidden", hidden, t, h, Use::read, true},
        {"dx", dx, t, k, Use::written, true},
        {"dw1", dw1, h, k, Use::written, true},
        {"db1", db1, 1, h, Use::written},
        {"dw2", dw2, n, h, Use::written, true},
        {"db2", db2, 1, n, Use::written},
        {"dhidden", dhidden, t, h, Use::written, true},
        {"dz", dz, t, h, Use::written, true},
    };
    if (const int32_t code = check(matrices, where)) return code;
    const auto silu = static_cast<det::Activation>(activation);
    det::Status status = det::input_gradient(g, w2, dhidden, t, n, h, where);
    if (status == det::Status::ok) status = det::silu_backward(dhidden, z, dz, t * h, silu, where);
    if (status == det::Status::ok) status = det::weight_gradient(g, hidden, dw2, t, n, h, where);
    if (status == det::Status::ok) status = det::bias_gradient(g, db2, t, n, where);
    if (status == det::Status::ok) status = det::input_gradient(dz, w1, dx, t, h, k, where);
    if (status == det::Status::ok) status = det::weight_gradient(dz, x, dw1, t, h, k, where);
    if (status == det::Status::ok) status = det::bias_gradient(dz, db1, t, h, where);
    return answer(status);
}

int32_t det_linear_expf(const float *x, float *y, int64_t count, int32_t activation, int32_t threads, void *stream) {
    const det::Where where{threads, stream};
    if (const int32_t code = check_size("count", count)) return code;
    if (const int32_t code = check_silu(activation)) return code;
    const Matrix matrices[] = {{"x", x, 1, count}, {"y", y, 1, count, Use::written}};
    if (const int32_t code = check(matrices, where)) return code;
    return answer(det::expf(x, y, count, static_cast<det::Activation>(activation), where));
}
