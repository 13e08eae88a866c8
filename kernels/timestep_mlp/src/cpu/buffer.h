#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

namespace det {

// Memory of `count` plain values, not initialised, aligned to a cache line. Check valid() before use: there are no
// exceptions here.
template <class Value>
class Buffer {
public:
    explicit Buffer(int64_t count) {
        void *memory = nullptr;
        const size_t bytes = static_cast<size_t>(count) * sizeof(Value);
        if (posix_memalign(&memory, kCacheLine, bytes) == 0) values_ = static_cast<Value *>(memory);
    }
    ~Buffer() { free(values_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    bool valid() const { return values_ != nullptr; }
    Value *data() { return values_; }
    const Value *data() const { return values_; }
    Value &operator[](int64_t i) { return values_[i]; }
    const Value &operator[](int64_t i) const { return values_[i]; }

private:
    static constexpr size_t kCacheLine = 64;
    Value *values_ = nullptr;
};

}  // namespace det
