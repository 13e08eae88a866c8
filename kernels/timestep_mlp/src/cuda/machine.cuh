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
