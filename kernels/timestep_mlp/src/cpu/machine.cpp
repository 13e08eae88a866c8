// Asks the processor before anything here needs it: on x86_64 the library is compiled to x86-64-v3, and this file must
// run on any x86_64. What it takes from the processor is one block of assembler, and the rest is plain integer code in
// functions for which the compiler may not use what is being asked for.
#include "machine.h"

#include <stdint.h>

namespace det {

#if defined(__x86_64__)

#define ANY_X86_64 __attribute__((noinline, target("no-avx,no-avx2,no-fma,no-f16c,no-bmi,no-bmi2,no-lzcnt,no-movbe")))

namespace {

struct Leaf {
    uint32_t eax, ebx, ecx, edx;
};

ANY_X86_64 Leaf cpuid(uint32_t leaf) {
    Leaf found;
    asm volatile("cpuid" : "=a"(found.eax), "=b"(found.ebx), "=c"(found.ecx), "=d"(found.edx) : "a"(leaf), "c"(0));
    return found;
}

ANY_X86_64 bool system_keeps_vectors() {
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6u) == 6u;
}

}  // namespace

ANY_X86_64 const char *missing_instructions() {
    // Bits of the vendors' manuals. Leaf 1, ecx: FMA 12, MOVBE 22, OSXSAVE 27, AVX 28, F16C 29.
    constexpr uint32_t kLeaf1 = 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29;
    // Leaf 7, ebx: BMI1 3, AVX2 5, BMI2 8. Leaf 0x80000001, ecx: LZCNT 5.
    constexpr uint32_t kLeaf7 = 1u << 3 | 1u << 5 | 1u << 8, kExtended = 1u << 5;
    if (cpuid(0).eax < 7 || (cpuid(1).ecx & kLeaf1) != kLeaf1 || (cpuid(7).ebx & kLeaf7) != kLeaf7 ||
        (cpuid(0x80000001).ecx & kExtended) != kExtended) {
        return "this processor lacks AVX2, FMA or another instruction of x86-64-v3";
    }
    return system_keeps_vectors() ? nullptr : "this system has AVX registers switched off";
}

#else

const char *missing_instructions() { return nullptr; }

#endif

}  // namespace det
