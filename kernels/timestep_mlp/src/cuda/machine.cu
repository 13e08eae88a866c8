#include "machine.cuh"

#include <pthread.h>
#include <stdio.h>

#include "../exponential.h"

namespace det {
namespace {

thread_local char words[240];

constexpr int kMostDevices = 64;
// Tiles may reach over the edge: no index overflows an int.
constexpr int64_t kLongest = INT32_MAX - 1024;

// Whether this library has code for the current device is asked of this kernel: all are built alike.
__global__ void probe(float *value) { *value = 0.0f; }

cudaMemPool_t pool() {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static cudaMemPool_t pools[kMostDevices];
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= kMostDevices) return nullptr;
    pthread_mutex_lock(&mutex);
    if (pools[device] == nullptr) {
        cudaMemPoolProps properties = {};
        properties.allocType = cudaMemAllocationTypePinned;
        properties.location.type = cudaMemLocationTypeDevice;
        properties.location.id = device;
        uint64_t keep = uint64_t{1} << 31;  // bytes that stay with the pool between calls
        if (cudaMemPoolCreate(&pools[device], &properties) == cudaSuccess) {
            cudaMemPoolSetAttribute(pools[device], cudaMemPoolAttrReleaseThreshold, &keep);
        }
    }
    pthread_mutex_unlock(&mutex);
    return pools[device];
}

const char *no_code() {
    static OncePerDevice found;
    cudaError_t error = cudaSuccess;
    const Status status = found.ensure([&error] {
        cudaFuncAttributes attributes;
        error = cudaFuncGetAttributes(&attributes, probe);
        return error;
    });
    if (status == Status::ok) return nullptr;
    int device = 0, major = 0, minor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    snprintf(words, sizeof words, "the library holds no code for GPU %d, which has capability %d.%d (%s)", device, major,
             minor, cudaGetErrorString(error));
    return words;
}

// Asking for flags is refused while the stream records a graph; asking whether it does so finds a dead one less surely.
cudaError_t living(cudaStream_t stream) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(stream, &capturing);
    if (error != cudaSuccess || capturing != cudaStreamCaptureStatusNone) return error;
    unsigned flags = 0;
    return cudaStreamGetFlags(stream, &flags);
}

}  // namespace

const char *device() { return "cuda"; }

const char *unavailable() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        cudaGetLastError();
        snprintf(words, sizeof words, "no GPU answers: %s", error ? cudaGetErrorString(error) : "there is none");
        return words;
    }
    return no_code();
}

const char *refusal(const Where &where, const Given *given, int64_t count, int64_t longest) {
    if (where.stream == nullptr) {
        return "stream is null; name a stream, the legacy default stream is cudaStreamLegacy (1)";
    }
    if (longest > kLongest) return "a matrix has more rows or columns than a CUDA kernel can number";
    int current = 0;
    cudaError_t error = cudaGetDevice(&current);
    if (error == cudaSuccess && no_code() != nullptr) return words;
    if (error == cudaSuccess) error = living(static_cast<cudaStream_t>(where.stream));
    if (error != cudaSuccess) {
        cudaGetLastError();
        snprintf(words, sizeof words, "stream is not a living stream of this process: %s", cudaGetErrorString(error));
        return words;
    }
    for (int64_t i = 0; i < count; ++i) {
        cudaPointerAttributes found;
        error = cudaPointerGetAttributes(&found, given[i].pointer);
        const bool there = error == cudaSuccess && (found.type == cudaMemoryTypeDevice || found.type == cudaMemoryTypeManaged);
        if (there && (found.device == current || found.type == cudaMemoryTypeManaged)) continue;
        cudaGetLastError();
        if (there) {
            snprintf(words, sizeof words, "%s lies on GPU %d; the current device is GPU %d", given[i].name, found.device,
                     current);
        } else {
            snprintf(words, sizeof words, "%s is not in a GPU's memory", given[i].name);
        }
        return words;
    }
    return nullptr;
}

const char *failure() { return words; }

int multiprocessors() {
    int device = 0, count = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
}

Status outcome(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return Status::ok;
    cudaGetLastError();
    if (error == cudaErrorMemoryAllocation) return Status::no_memory;
    snprintf(words, sizeof words, "%s: %s", what, cudaGetErrorString(error));
    return Status::failed;
}

Scratch::Scratch(int64_t floats, cudaStream_t stream) : stream_(stream) {
    const cudaMemPool_t from = pool();
    status_ = from == nullptr ? Status::no_memory
                              : outcome(cudaMallocFromPoolAsync(reinterpret_cast<void **>(&data_),
                                                                sizeof(float) * floats, from, stream),
                                        "memory for the call");
}

Scratch::~Scratch() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
}

}  // namespace det
