// What happens to whole rows between the products of one instruction set: LayerNorm, quantising weights.
#pragma once
#include "../kernels.h"
#include "simd.h"

namespace fusebert::FB_ISA {

inline void layer_norm(const float* in, int64_t in_stride, float* out, int64_t out_stride, int64_t rows, int64_t width,
                       const fb_norm& norm) {
  const int64_t whole = width / kLanes * kLanes, rest = width - whole;
  const float share = 1.0f / static_cast<float>(width);
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = in + r * in_stride;
    float* y = out + r * out_stride;
    const auto mean_of = [&](float past_the_end, const auto& term) {  // four sums: one would wait for itself
      vf part[4] = {};
      int64_t i = 0;
      for (; i + 4 * kLanes <= whole; i += 4 * kLanes)
        for (int j = 0; j < 4; ++j) part[j] += term(load<vf>(x + i + j * kLanes));
      for (; i < whole; i += kLanes) part[0] += term(load<vf>(x + i));
      if (rest) part[0] += term(load_part(x + whole, rest, past_the_end));
      return sum((part[0] + part[1]) + (part[2] + part[3])) * share;
    };
    const float mean = mean_of(0, [](vf v) { return v; });
    const float variance = mean_of(mean, [&](vf v) { return (v - mean) * (v - mean); });
    const float inverse = 1.0f / __builtin_sqrtf(variance + norm.epsilon);
    const auto finish = [&](vf v, vf gain, vf bias) { return (v - mean) * inverse * gain + bias; };
    for (int64_t i = 0; i < whole; i += kLanes)
      store(y + i, finish(load<vf>(x + i), norm.gain ? load<vf>(norm.gain + i) : splat(1),
                          norm.bias ? load<vf>(norm.bias + i) : vf{}));
    if (rest)
      store_part(y + whole,
                 finish(load_part(x + whole, rest), norm.gain ? load_part(norm.gain + whole, rest) : splat(1),
                        norm.bias ? load_part(norm.bias + whole, rest) : vf{}),
                 rest);
  }
}

// ---- weights -> signed bytes ----
//
// Eight at a time on every instruction set: these are what kSumLimit speaks of.
typedef float Eight __attribute__((vector_size(32)));
typedef int32_t EightWhole __attribute__((vector_size(32)));

// What a lane's neighbour has, and the lane four places on.
FB_INLINE Eight beside(Eight x) { return __builtin_shuffle(x, EightWhole{1, 0, 3, 2, 5, 4, 7, 6}); }
FB_INLINE Eight across(Eight x) { return __builtin_shuffle(x, EightWhole{4, 5, 6, 7, 0, 1, 2, 3}); }

// For each lane, the sum of the four that are limited together (see kSumLimit).
FB_INLINE Eight sums_of_four(Eight x) { return x + beside(x) + across(x + beside(x)); }

// Where four levels, none negative, add up to too much, each gives the same, or the first ones one more.
FB_INLINE Eight limited(Eight levels) {
  for (;;) {
    const Eight excess = sums_of_four(levels) - static_cast<float>(kSumLimit);
    const EightWhole over = excess > 0.0f;
    int32_t lane[8], found = 0;
    store(lane, over);
    for (int i = 0; i < 8; ++i) found |= lane[i];
    if (!found) return levels;
    const Eight some = levels > 0.0f ? Eight{} + 1.0f : Eight{}, count = sums_of_four(some);
    const Eight share = excess / count - 0.375f + kNearest - kNearest;  // rounded down, being thirds or quarters
    const Eight before =
        beside(some) * Eight{0, 1, 0, 1, 0, 1, 0, 1} + across(some + beside(some)) * Eight{0, 0, 0, 0, 1, 1, 1, 1};
    const Eight left = levels - share - (before < excess - share * count ? Eight{} + 1.0f : Eight{});
    levels = over ? (left > 0.0f ? left : Eight{}) : levels;
  }
}

FB_INLINE Eight quantized(Eight x, float inverse) {
  const Eight levels = x * inverse + kNearest - kNearest, most = Eight{} + 127.0f;
  const Eight above = levels > 0.0f ? levels : Eight{}, below = levels < 0.0f ? -levels : Eight{};
  return limited(above < most ? above : most) - limited(below < most ? below : most);
}

inline float quantize_weights(const float* row, int64_t width, int8_t* values) {
  const auto at = [&](int64_t i) {
    Eight x = {};
    std::memcpy(&x, row + i, sizeof(float) * static_cast<size_t>(width - i < 8 ? width - i : 8));
    return x;
  };
  const auto most = [](Eight x, float limit) {
    float peak = 0;
    for (int i = 0; i < 8; ++i) peak = x[i] > peak * limit ? x[i] / limit : peak;
    return peak;
  };
  Eight top = {}, sums = {};
  for (int64_t i = 0; i < width; i += 8) {
    const Eight x = at(i), above = sums_of_four(x > 0.0f ? x : Eight{}), below = sums_of_four(x < 0.0f ? -x : Eight{});
    const Eight size = x < 0.0f ? -x : x, sum = above > below ? above : below;
    top = size > top ? size : top;
    sums = sum > sums ? sum : sums;
  }
  const float alone = most(top, 127.0f), together = most(sums, kSumLimit), widest = alone > together ? alone : together;
  float best_scale = 1.0f, best_error = __builtin_inff();
  // Clipping the largest weights a little, and fours of them, makes the steps of all the others finer.
  for (int step = 0; step <= 24 && widest > 0; ++step) {
    const float scale = widest * (1.0f - 0.025f * static_cast<float>(step)), inverse = 1.0f / scale;
    Eight error = {};
    for (int64_t i = 0; i < width; i += 8) {
      const Eight difference = quantized(at(i), inverse) * scale - at(i);
      error += difference * difference;
    }
    float total = 0;
    for (int i = 0; i < 8; ++i) total += error[i];
    if (total < best_error) {
      best_error = total;
      best_scale = scale;
    }
  }
  for (int64_t i = 0; i < width; i += 8) {
    const Eight levels = quantized(at(i), 1.0f / best_scale);
    for (int64_t j = 0; j < 8 && i + j < width; ++j) values[i + j] = static_cast<int8_t>(levels[j]);
  }
  return best_scale;
}

}  // namespace fusebert::FB_ISA
