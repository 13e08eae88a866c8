// The floating-point mode that the contract is written for: round to nearest, subnormal numbers, no traps.
#pragma once

#include <stdint.h>

namespace det {

// Sets the mode for the calling thread and restores what it found, exception flags included.
class FloatMode {
public:
    FloatMode() : found_(read()) { write(kContract); }
    ~FloatMode() { write(found_); }
    FloatMode(const FloatMode &) = delete;
    FloatMode &operator=(const FloatMode &) = delete;

private:
#if defined(__x86_64__)
    using Register = uint32_t;
    static constexpr Register kContract = 0x1f80;  // MXCSR: every exception masked, all else off

    static Register read() {
        Register value;
        asm volatile("stmxcsr %0" : "=m"(value) : : "memory");
        return value;
    }
    static void write(Register value) { asm volatile("ldmxcsr %0" : : "m"(value) : "memory"); }
#elif defined(__aarch64__)
    using Register = uint64_t;
    static constexpr Register kContract = 0;  // FPCR: no flushing, no default NaN, no traps

    static Register read() {
        Register value;
        asm volatile("mrs %0, fpcr" : "=r"(value) : : "memory");
        return value;
    }
    static void write(Register value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#else
#error "the contract's kernel is built for x86_64 and aarch64"
#endif

    Register found_;
};

}  // namespace det
