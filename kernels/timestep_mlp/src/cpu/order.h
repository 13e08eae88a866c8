// An order of summation as data: which term comes when, where partial sums end, and how they make the whole.
#pragma once

#include <stdint.h>

#include "buffer.h"

namespace det {

enum class Combine {
    chain,  // one fma chain; each segment goes on from the one before
    left,   // each segment is a chain of 64 terms from 0; their sums are added left to right
    tree,   // each segment is a lane's chain from 0; the 32 sums are combined as by an xor butterfly
};

class Order {
public:
    Order(Combine combine, int64_t terms);

    bool valid() const { return place_.valid() && first_.valid(); }
    int64_t terms() const { return terms_; }
    int64_t segments() const { return segments_; }
    // The position of a term, given by its index in the reduction.
    int64_t place(int64_t term) const { return place_[term]; }
    // The position of a segment's first term. A segment ends where the next begins, and can be empty.
    int64_t first(int64_t segment) const { return first_[segment]; }

private:
    void cut(int64_t length);
    void deal_to_lanes();

    int64_t terms_, segments_;
    Buffer<int64_t> place_, first_;
};

}  // namespace det
