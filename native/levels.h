// 8-bit numbers: the limit on weights, since without VNNI four products of bytes are added in 16 bits before they are
// widened; and a row's zero point times the sum of a column's weights, as one product of pairs.
#pragma once
#include <algorithm>
#include <cstdint>

namespace fusebert {

// Of eight weights in a row the first, second, fifth and sixth may add up to so much, the positive ones and the
// negative ones, and so may the other four: times the 255 levels of an input, their sum still fits 16 bits.
constexpr int kSumLimit = 128;

// Whether a row of weights keeps the limit. Static, not merely inline: see round_up in kernels.h.
static inline bool sums_fit(const int8_t* levels, int64_t count) {
  int most = 0;
  for (int64_t first = 0; first < count; first += 8)
    for (int64_t half = 0; half < 2; ++half) {
      int above = 0, below = 0;
      for (int64_t i : {0, 1, 4, 5})
        if (const int64_t at = first + 2 * half + i; at < count) {  // without a branch on signs, which are random
          above += std::max<int>(levels[at], 0);
          below += std::min<int>(levels[at], 0);
        }
      most = std::max({most, above, -below});
    }
  return most <= kSumLimit;
}

// A zero point (up to 255) and a sum of weights (up to 2^21) as two numbers of 16 bits each: (zero, 128 zero) times
// (sum mod 128, sum / 128). Multiplying 32 bits with each other takes some machines ten times as long.
static inline int32_t zero_pair(int32_t zero) { return zero | zero << 23; }
static inline int32_t zero_of(int32_t pair) { return pair & 255; }
static inline int32_t sum_pair(int32_t sum) {
  return static_cast<int32_t>((static_cast<uint32_t>(sum) & 127) | static_cast<uint32_t>(sum >> 7) << 16);
}

}  // namespace fusebert
