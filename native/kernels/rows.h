// What happens to whole rows between the products of one instruction set: norms, rotations, gates, terms of scores,
// quantising weights.
#pragma once
#include "../kernels.h"
#include "../levels.h"
#include "packing.h"

namespace fusebert::FB_ISA {

// With its mean taken away, or (FB_RMS_NORM) as it is, a row is divided by its spread. Some rows are in each stage at a
// time: one alone would wait for its sums.
template <bool Centered>
void norm_rows(const float* in, int64_t in_stride, float* out, int64_t out_stride, int64_t rows, int64_t width,
               const fb_norm& norm) {
  constexpr int64_t kTogether = 4;
  const int64_t whole = width / kLanes * kLanes, rest = width - whole;
  const float share = 1.0f / static_cast<float>(width);
  const auto mean_of = [&](const float* x, float past_the_end, const auto& term) {  // four sums, for the same reason
    vf part[4] = {};
    int64_t i = 0;
    for (; i + 4 * kLanes <= whole; i += 4 * kLanes)
      for (int j = 0; j < 4; ++j) part[j] += term(load<vf>(x + i + j * kLanes));
    for (; i < whole; i += kLanes) part[0] += term(load<vf>(x + i));
    if (rest) part[0] += term(load_part(x + whole, rest, past_the_end));
    return sum((part[0] + part[1]) + (part[2] + part[3])) * share;
  };
  const auto write = [&](const float* x, float mean, float inverse, float* y) {
    const auto finish = [&](vf v, vf gain, vf bias) { return (v - mean) * inverse * gain + bias; };
    for (int64_t i = 0; i < whole; i += kLanes)
      store(y + i, finish(load<vf>(x + i), norm.gain ? load<vf>(norm.gain + i) : splat(1),
                          norm.bias ? load<vf>(norm.bias + i) : vf{}));
    if (rest)
      store_part(y + whole,
                 finish(load_part(x + whole, rest), norm.gain ? load_part(norm.gain + whole, rest) : splat(1),
                        norm.bias ? load_part(norm.bias + whole, rest) : vf{}),
                 rest);
  };
  float mean[kTogether] = {}, inverse[kTogether];
  for (int64_t first = 0; first < rows;
       first += kTogether, in += kTogether * in_stride, out += kTogether * out_stride) {
    const int64_t count = rows - first < kTogether ? rows - first : kTogether;
    for (int64_t r = 0; Centered && r < count; ++r) mean[r] = mean_of(in + r * in_stride, 0, [](vf v) { return v; });
    for (int64_t r = 0; r < count; ++r) {
      const float own = mean[r];
      inverse[r] = mean_of(in + r * in_stride, own, [&](vf v) { return (v - own) * (v - own); });
    }
    for (int64_t r = 0; r < count; ++r) inverse[r] = 1.0f / __builtin_sqrtf(inverse[r] + norm.epsilon);
    for (int64_t r = 0; r < count; ++r) write(in + r * in_stride, mean[r], inverse[r], out + r * out_stride);
  }
}

inline void rotate(float* row, int64_t heads, int64_t size, const float* angles) {
  const int64_t half = size / 2;
  for (float* const end = row + heads * size; row < end; row += size)
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t left = half - i;
      const auto at = [&](const float* p) { return left >= kLanes ? load<vf>(p + i) : load_part(p + i, left); };
      const auto put = [&](float* p, vf v) { left >= kLanes ? store(p + i, v) : store_part(p + i, v, left); };
      const vf first = at(row), second = at(row + half), cosine = at(angles), sine = at(angles + half);
      put(row, first * cosine - second * sine);
      put(row + half, second * cosine + first * sine);
    }
}

template <class Activate>
FB_INLINE void gate_by(const float* gate, float* up, int64_t width, Activate activate) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(up + i, activate(load<vf>(gate + i)) * load<vf>(up + i));
  if (i < width) store_part(up + i, activate(load_part(gate + i, width - i)) * load_part(up + i, width - i), width - i);
}
inline void gate(int32_t activation, const float* gate, float* up, int64_t width) {
  switch (activation) {
#define FB_GATE(NAME, name, number) \
  case number: return gate_by(gate, up, width, [](vf x) { return name(x); });
    FB_ACTIVATION_LIST(FB_GATE)
#undef FB_GATE
  }
}

inline void add_terms(float* scores, int64_t count, const float* terms, int64_t stride, const int32_t* index) {
  for (int64_t i = 0; i < count; ++i) scores[i] += terms[i * stride + index[i]];
}

// Of lanes whose index falls by at most 1 from each to the next, all are within one vector.
FB_INLINE vf near_terms(const float* terms, const int32_t* index) {
  const int32_t least = index[kLanes - 1];
  return permuted(load<vf>(terms + least), load<vi>(index) - least);
}

// What keys give comes by key, for some rows at a time, and is turned into rows over keys.
inline void add_near_terms(float* scores, int64_t stride, int64_t rows, int64_t keys, const NearTerms& terms) {
  for (int64_t first = 0; first < rows; first += kLanes)
    for (int64_t key = 0; key < keys; key += kLanes) {
      const int64_t last = first + kLanes - 1;  // lanes count rows down from here, as their distances rise
      vi of_keys[kLanes] = {};
      for (int64_t j = 0; terms.of_keys && j < kLanes && key + j < keys; ++j)
        of_keys[j] = (vi)near_terms(terms.of_keys + (key + j) * terms.width, terms.index + key + j - last);
      if (terms.of_keys) zip_rows<kLanes>(of_keys);
      for (int64_t row = first; row <= last && row < rows; ++row) {
        float* const at = scores + row * stride + key;
        vf sum = load<vf>(at);
        if (terms.of_queries) sum += near_terms(terms.of_queries + row * terms.width, terms.index + key - row);
        if (terms.of_keys) sum += (vf)of_keys[last - row];
        store(at, sum);
      }
    }
}

// ---- weights -> signed bytes ----
//
// Eight at a time on every instruction set: these are what kSumLimit speaks of.
typedef float Eight __attribute__((vector_size(32)));
typedef int32_t EightWhole __attribute__((vector_size(32)));

// What a lane's neighbour has, and the lane four places on.
FB_INLINE Eight beside(Eight x) { return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6); }
FB_INLINE Eight across(Eight x) { return __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3); }

// For each lane, the sum of the four that are limited together (see kSumLimit).
FB_INLINE Eight sums_of_four(Eight x) { return x + beside(x) + across(x + beside(x)); }

// Where four levels, none negative, add up to too much, each gives the same, or the first ones one more.
FB_INLINE Eight limited(Eight levels) {
  for (;;) {
    const Eight excess = sums_of_four(levels) - static_cast<float>(kSumLimit);
    const EightWhole over = excess > 0.0f;
    if (!(over[0] | over[2])) return levels;  // one lane of each four
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
    if (width - i >= 8) return load<Eight>(row + i);
    Eight x = {};
    std::memcpy(&x, row + i, sizeof(float) * static_cast<size_t>(width - i));
    return x;
  };
  Eight top = {}, sums = {};  // of quarters, which never add up to more than there is
  for (int64_t i = 0; i < width; i += 8) {
    const Eight x = at(i), size = x < 0.0f ? -x : x, quarter = x * 0.25f;
    const Eight above = sums_of_four(x > 0.0f ? quarter : Eight{}), below = sums_of_four(x < 0.0f ? -quarter : Eight{});
    const Eight sum = above > below ? above : below;
    top = size > top ? size : top;
    sums = sum > sums ? sum : sums;
  }
  float widest = 0;
  for (int i = 0; i < 8; ++i) {
    const float alone = top[i] / 127.0f, together = sums[i] / (0.25f * kSumLimit);
    widest = alone > widest ? alone : widest;
    widest = together > widest ? together : widest;
  }
  float best_scale = 1.0f;
  if (widest > 1e-36f) {  // else nothing, and its inverse would be infinite
    // Clipping the largest weights a little, and fours of them, makes the steps of all the others finer.
    float least = __builtin_inff();
    int best = 0;
    const auto consider = [&](int clipped) {
      const float share = 1.0f - 0.025f * static_cast<float>(clipped), scale = widest * share;
      Eight squares = {};  // of errors, in steps: weights may be of any size
      for (int64_t i = 0; i < width; i += 8) {
        const Eight error = quantized(at(i), 1.0f / scale) - at(i) * (1.0f / scale);
        squares += error * error;
      }
      float total = 0;
      for (int i = 0; i < 8; ++i) total += squares[i] * share * share;
      if (total < least) least = total, best = clipped, best_scale = scale;
    };
    for (int clipped = 0; clipped <= 24; clipped += 4) consider(clipped);
    for (int near = 2; near > 0; near /= 2) {
      const int middle = best;
      if (middle > 0) consider(middle - near);
      consider(middle + near);
    }
  }
  for (int64_t i = 0; i < width; i += 8) {
    const Eight levels = quantized(at(i), 1.0f / best_scale);
    for (int64_t j = 0; j < 8 && i + j < width; ++j) values[i + j] = static_cast<int8_t>(levels[j]);
  }
  return best_scale;
}

}  // namespace fusebert::FB_ISA
