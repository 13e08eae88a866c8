// Compares the kernel library's exponential with a long double's for every float, and measures what its proof rests on:
// how far the double exponential is off, and how near any float's exponential comes to a tie between two floats.
//
//     g++ -std=c++17 -O2 -march=x86-64-v3 -ffp-contract=off -I kernels/timestep_mlp/src
//         tests/native/expf_exhaustive.cpp -o expf_exhaustive -ldl -lpthread
//     ./expf_exhaustive LIBRARY [THREADS]
//
// Takes about five minutes on two cores and exits with 0 when every float agrees.
#include <dlfcn.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "det_linear.h"
#include "exponential.h"

static_assert(LDBL_MANT_DIG >= 64, "the reference must be more precise than double");

namespace {

using Expf = decltype(&det_linear_expf);

constexpr int64_t kBlock = 1 << 16;

struct Near {
    double distance;  // from the nearest tie, in double ulp
    float x;
};

struct Findings {
    int64_t different = 0;
    double error = 0;         // the largest of the double exponential, in double ulp
    std::vector<Near> near;   // a few floats whose exponentials are nearest to ties
};

float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

bool same(float a, float b) {
    return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, sizeof a) == 0;
}

void keep_nearest(std::vector<Near> &near) {
    constexpr size_t kKept = 8;
    std::sort(near.begin(), near.end(), [](const Near &a, const Near &b) { return a.distance < b.distance; });
    near.resize(std::min(near.size(), kKept));
}

void measure(float x, long double exact, Findings &findings) {
    int exponent;
    std::frexp(exact, &exponent);
    const long double double_ulp = std::ldexp(1.0L, exponent - 53);
    const long double error = std::fabs((det::exp_double(x) - exact) / double_ulp);
    findings.error = std::max(findings.error, static_cast<double>(error));
    // Below the smallest normal number the spacing of floats stays what it is.
    const long double float_ulp = std::ldexp(1.0L, std::max(exponent - 24, -149));
    const long double scaled = exact / float_ulp;
    const long double tie = std::fabs(scaled - std::floor(scaled) - 0.5L) * (float_ulp / double_ulp);
    if (x != 0 && tie < 64) findings.near.push_back({static_cast<double>(tie), x});
    if (findings.near.size() > 4096) keep_nearest(findings.near);
}

void examine(Expf expf, uint64_t begin, uint64_t end, Findings &findings) {
    std::vector<float> x(kBlock), y(kBlock);
    for (uint64_t first = begin; first < end; first += kBlock) {
        for (int64_t i = 0; i < kBlock; ++i) x[i] = float_of(static_cast<uint32_t>(first + i));
        if (expf(x.data(), y.data(), kBlock, DET_LINEAR_ACTIVATION_SILU_PORTABLE, 1, nullptr) != DET_LINEAR_OK) std::abort();
        for (int64_t i = 0; i < kBlock; ++i) {
            const long double exact = std::exp(static_cast<long double>(x[i]));
            if (!same(y[i], static_cast<float>(exact)) || !same(y[i], det::exp_float(x[i]))) ++findings.different;
            if (x[i] > -104.0f && x[i] < 89.0f) measure(x[i], exact, findings);
        }
    }
    keep_nearest(findings.near);
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 2) return std::fprintf(stderr, "usage: %s LIBRARY [THREADS]\n", arguments[0]), 2;
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 2;
    const auto expf = reinterpret_cast<Expf>(dlsym(library, "det_linear_expf"));
    const uint64_t threads = count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 2;

    std::vector<Findings> findings(threads);
    std::vector<std::thread> running;
    // Blocks are dealt so that each thread gets its share of the ranges where the work is.
    constexpr uint64_t kPart = uint64_t{1} << 24, kParts = 256;
    for (uint64_t thread = 0; thread < threads; ++thread) {
        running.emplace_back([=, &findings] {
            for (uint64_t part = thread; part < kParts; part += threads) {
                examine(expf, part * kPart, (part + 1) * kPart, findings[thread]);
            }
        });
    }
    for (std::thread &thread : running) thread.join();

    Findings all;
    for (const Findings &part : findings) {
        all.different += part.different;
        all.error = std::max(all.error, part.error);
        all.near.insert(all.near.end(), part.near.begin(), part.near.end());
    }
    keep_nearest(all.near);
    std::printf("different: %lld of 4294967296\n", static_cast<long long>(all.different));
    std::printf("largest error of the double exponential: %.4f double ulp\n", all.error);
    for (const Near &near : all.near) std::printf("exp(%a) is %.4f double ulp from a tie\n", near.x, near.distance);
    return all.different == 0 ? 0 : 1;
}
