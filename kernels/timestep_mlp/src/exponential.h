// exp for float32, correctly rounded, and the SiLU that is made of it. Nothing here is a libm's.
#pragma once

#include <stdint.h>
#include <string.h>

// Explicitly rounded operations, for a host's compiler and for a GPU's.
#if defined(__CUDACC__)
#define DET_ANYWHERE __host__ __device__ inline
#else
#define DET_ANYWHERE inline
#endif

namespace det {

DET_ANYWHERE double fused(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
    return __fma_rn(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
}

// exp in double, for every float whose exponential is neither infinite nor zero as a float. Its error is below 1.0 ulp
// (0.87 is the largest found):
//   0.50  the last fma
//   0.21  the rounding of the polynomial before it, times |r| <= 0.35
//   0.21  the rounding of r: 2^-55 absolute, against results of at least 0.70
//   0.01  the Taylor series cut after r^14 / 14!
// Branch-free, so that loops over it vectorise; each operation is exact or rounds once, so vectorising changes nothing.
DET_ANYWHERE double exp_double(float x) {
    constexpr double kLog2E = 0x1.71547652b82fep+0;
    // ln 2 = high + low: high is cut after 42 bits, so that k * high and x - k * high are exact.
    constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;
    // Adding it rounds to an integer and leaves that integer in the low bits.
    constexpr double kShift = 0x1.8p52;

    // Beyond these the float is infinite or zero. Both comparisons are false for a NaN, which goes through.
    double v = x;
    v = v > 90.0 ? 90.0 : v;
    v = v < -110.0 ? -110.0 : v;

    const double shifted = fused(v, kLog2E, kShift);
    const double k = shifted - kShift;
    const double r = fused(-k, kLn2Low, fused(-k, kLn2High, v));

    // 1 / n!: every factorial here is exact in double, and each quotient is correctly rounded by the compiler.
    double p = 1.0 / 87178291200.0;
    p = fused(p, r, 1.0 / 6227020800.0);
    p = fused(p, r, 1.0 / 479001600.0);
    p = fused(p, r, 1.0 / 39916800.0);
    p = fused(p, r, 1.0 / 3628800.0);
    p = fused(p, r, 1.0 / 362880.0);
    p = fused(p, r, 1.0 / 40320.0);
    p = fused(p, r, 1.0 / 5040.0);
    p = fused(p, r, 1.0 / 720.0);
    p = fused(p, r, 1.0 / 120.0);
    p = fused(p, r, 1.0 / 24.0);
    p = fused(p, r, 1.0 / 6.0);
    p = fused(p, r, 0.5);
    p = fused(p, r, 1.0);
    p = fused(p, r, 1.0);

    // 2^k lies well inside double's range, so the product is exact.
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

// The float nearest to exp(x), ties to even, subnormal results and overflow included; exp(NaN) is NaN.
//
// The double is rounded once. No float's exponential but exp(0) comes nearer than 1.26 double ulp to a number halfway
// between two floats, so the double's error can't change the result. tests/native/expf_exhaustive.cpp measures
// both figures over every float.
DET_ANYWHERE float exp_float(float x) { return static_cast<float>(exp_double(x)); }

// What SiLU is made of, by its exponential.
struct NearestExponential {
    DET_ANYWHERE float operator()(float x) const { return exp_float(x); }
};

template <class Exponential>
DET_ANYWHERE float silu(float v, Exponential exponential) {
    return v / (1.0f + exponential(-v));
}

// g times silu's derivative at z; each operation rounds on its own.
template <class Exponential>
DET_ANYWHERE float silu_backward(float g, float z, Exponential exponential) {
    const float s = 1.0f / (1.0f + exponential(-z));
    return g * (s * (1.0f + z * (1.0f - s)));
}

}  // namespace det
