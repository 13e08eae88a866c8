#include "order.h"

namespace det {
namespace {

constexpr int64_t kLanes = 32;
constexpr int64_t kLaneChunk = 4;      // terms: 16 bytes
constexpr int64_t kLeftSegment = 64;   // terms, by contract
constexpr int64_t kChainSegment = 256; // terms, by what fits a cache: a chain has the same bits wherever it is cut

int64_t segments_of(Combine combine, int64_t terms) {
    if (combine == Combine::tree) return kLanes;
    const int64_t length = combine == Combine::left ? kLeftSegment : kChainSegment;
    return (terms + length - 1) / length;
}

int64_t reversed(int64_t lane) {
    int64_t result = 0;
    for (int64_t bit = 1; bit < kLanes; bit *= 2) result = result * 2 + (lane & bit ? 1 : 0);
    return result;
}

}  // namespace

Order::Order(Combine combine, int64_t terms)
    : terms_(terms), segments_(segments_of(combine, terms)), place_(terms), first_(segments_ + 1) {
    if (!valid()) return;
    if (combine == Combine::tree) {
        deal_to_lanes();
    } else {
        cut(combine == Combine::left ? kLeftSegment : kChainSegment);
    }
}

void Order::cut(int64_t length) {
    for (int64_t i = 0; i < terms_; ++i) place_[i] = i;
    for (int64_t i = 0; i < segments_; ++i) first_[i] = i * length;
    first_[segments_] = terms_;
}

// Lane l owns the chunks l, l + 32, l + 64, ... Lanes come in bit-reversed order: whenever two sums are combined by the
// butterfly, the second was finished last, so that pending sums form a stack.
void Order::deal_to_lanes() {
    const int64_t chunks = terms_ / kLaneChunk;
    int64_t position = 0;
    for (int64_t segment = 0; segment < kLanes; ++segment) {
        first_[segment] = position;
        for (int64_t chunk = reversed(segment); chunk < chunks; chunk += kLanes) {
            for (int64_t i = 0; i < kLaneChunk; ++i) place_[chunk * kLaneChunk + i] = position++;
        }
    }
    first_[kLanes] = position;
}

}  // namespace det
