// What a call needs of the machine: an answer whether it can be made, memory for its length, and words for failures.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "../backend.h"

namespace det {

// The current device's number of multiprocessors.
int multiprocessors();

// Keeps the error, if it is one, in words for failure().
Status outcome(cudaError_t error, const char *what);

// Something that holds from its first success on, for each device.
class OncePerDevice {
public:
    template <class Action>
    Status ensure(const Action &action) {
        int device = 0;
        cudaGetDevice(&device);
        const uint64_t bit = uint64_t{1} << (device % 64);
        if (__atomic_load_n(&done_, __ATOMIC_ACQUIRE) & bit) return Status::ok;
        const Status status = outcome(action(), "preparing the device");
        if (status == Status::ok && device < 64) __atomic_fetch_or(&done_, bit, __ATOMIC_RELEASE);
        return status;
    }

private:
    uint64_t done_ = 0;
};

// Memory from the library's own pool, given out and taken back in the order of the stream.
class Scratch {
public:
    Scratch(int64_t floats, cudaStream_t stream);
    ~Scratch();
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;

    Status status() const { return status_; }
    float *data() const { return data_; }

private:
    cudaStream_t stream_;
    float *data_ = nullptr;
    Status status_;
};

}  // namespace det
