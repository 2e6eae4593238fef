// Floats in the forms that the products of one instruction set read: rows as inputs, keys and values as weights.
#pragma once
#include "../levels.h"
#include "products.h"

namespace fusebert::FB_ISA {

// ---- rows of floats -> inputs ----
//
// The rows of a tile lie interleaved, a group of inputs of each in turn, or (P::kRowByRow) one after the other. A group
// has 4 bytes in every precision.

FB_INLINE void zip(vi a, vi b, vi* low, vi* high) {
#if FB_LANES == 16
  *low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  *high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif FB_LANES == 8
  *low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  *high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  *low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  *high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// Interleaves the elements of Rows vectors: the first of each, then the second of each, ...
template <int Rows>
FB_INLINE void zip_rows(vi* rows) {
  vi zipped[Rows];
#pragma GCC unroll 4
  for (int span = Rows; span > 1; span /= 2) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows / 2; ++r) zip(rows[r], rows[r + Rows / 2], &zipped[2 * r], &zipped[2 * r + 1]);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) rows[r] = zipped[r];
  }
}
#if FB_LANES == 8
template <>  // with half the shuffles: only the last ones cross the middle of a vector
[[gnu::always_inline]] inline void zip_rows<8>(vi* rows) {
  vi pairs[8], fours[8];
#pragma GCC unroll 4
  for (int r = 0; r < 8; r += 2) {
    pairs[r] = __builtin_shufflevector(rows[r], rows[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[r + 1] = __builtin_shufflevector(rows[r], rows[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const int from = r / 2 * 4 + r % 2, to = r / 2 * 4 + r % 2 * 2;
    fours[to] = __builtin_shufflevector(pairs[from], pairs[from + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    fours[to + 1] = __builtin_shufflevector(pairs[from], pairs[from + 2], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    rows[r] = __builtin_shufflevector(fours[r], fours[r + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    rows[r + 4] = __builtin_shufflevector(fours[r], fours[r + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
#endif

// to[group][row] = from[row][group]
template <int Rows>
FB_INLINE void interleave(const int32_t* from, int64_t stride, int64_t height, int64_t groups, int32_t* to) {
  int64_t g = 0;
  if (height == Rows) {
    constexpr int kZipped = Rows > 4 ? 8 : 4;
    static_assert(Rows == kZipped || kLanes == kZipped);
    for (; g + kLanes <= groups; g += kLanes, to += kLanes * Rows) {
      vi rows[kZipped] = {};
      for (int r = 0; r < Rows; ++r) rows[r] = load<vi>(from + r * stride + g);
      zip_rows<kZipped>(rows);
      if constexpr (kZipped == Rows) {
        for (int r = 0; r < kZipped; ++r) store(to + r * kLanes, rows[r]);
      } else {  // a vector is a group of 8 rows, some of them not there: the next one covers these
        for (int r = 0; r < kZipped - 1; ++r) store(to + r * Rows, rows[r]);
        std::memcpy(to + (kZipped - 1) * Rows, &rows[kZipped - 1], Rows * sizeof *to);
      }
    }
  }
  for (; g < groups; ++g)
    for (int64_t r = 0; r < height; ++r) store(to++, load<int32_t>(from + r * stride + g));
}

// Converts rows by convert(row, first_input, last_input, to), some inputs of a tile at a time, and interleaves them.
// Before that, begin(row) is called for the rows of the tile: work of several rows that nothing else waits for.
template <class P, class Begin, class Convert>
FB_INLINE void prepare_rows(int64_t count, int64_t inputs, void* data, const Begin& begin, const Convert& convert) {
  constexpr int64_t kInputs = kSlice<P> / kLanes * kLanes * P::kGroup;  // whole vectors: the last one may be half used
  constexpr int kRows = P::kRowByRow ? 8 : P::kRows;
  alignas(64) typename P::Stored converted[kRows][kInputs];
  const int64_t padded = round_up(inputs, P::kGroup);
  for (int64_t row = 0; row < count; row += kRows) {
    const int64_t height = count - row < kRows ? count - row : kRows;
    auto* tile = static_cast<typename P::Stored*>(data) + row * padded;
    for (int64_t r = row; r < row + height; ++r) begin(r);
    for (int64_t first = 0; first < inputs; first += kInputs) {
      const int64_t last = inputs - first < kInputs ? inputs : first + kInputs;
      for (int64_t r = 0; r < height; ++r) {
        convert(row + r, first, last, converted[r]);
        for (int64_t i = last - first; i < round_up(last - first, P::kGroup); ++i) converted[r][i] = 0;
      }
      if constexpr (P::kRowByRow)
        for (int64_t r = 0; r < height; ++r)
          std::memcpy(tile + r * padded + first, converted[r],
                      sizeof **converted * static_cast<size_t>(round_up(last - first, P::kGroup)));
      else
        interleave<kRows>(reinterpret_cast<const int32_t*>(converted), kInputs / P::kGroup, height,
                          (last - first + P::kGroup - 1) / P::kGroup,
                          reinterpret_cast<int32_t*>(tile + first * height));
    }
  }
}

inline void prepare_f32(const float* rows, int64_t stride, int64_t count, int64_t inputs, const float*, Range,
                        void* data, float*, int32_t*) {
  for (int64_t row = 0; row < count; row += F32::kRows)
    interleave<F32::kRows>(reinterpret_cast<const int32_t*>(rows + row * stride), stride,
                           count - row < F32::kRows ? count - row : F32::kRows, inputs,
                           static_cast<int32_t*>(data) + row * inputs);
}

inline void prepare_bf16(const float* rows, int64_t stride, int64_t count, int64_t inputs, const float*, Range,
                         void* data, float*, int32_t*) {
  const auto nothing = [](int64_t) {};
  prepare_rows<Bf16>(count, inputs, data, nothing, [&](int64_t row, int64_t i, int64_t last, Bf16::Stored* to) {
    const float* x = rows + row * stride;
    for (; i < last; i += kLanes, to += kLanes)
      Bf16::put(to, last - i >= kLanes ? load<vf>(x + i) : load_part(x + i, last - i));
  });
}

// Calls f with the elements from i to last of a row, times their factors: four vectors at a time, zeros past the end.
template <class F>
FB_INLINE void each_four(const float* x, const float* factors, int64_t i, int64_t last, const F& f) {
  vf four[4];
  const auto next = [&](const auto& at) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) four[j] = factors ? at(x, j) * at(factors, j) : at(x, j);
    f(four);
  };
  for (; i + 4 * kLanes <= last; i += 4 * kLanes)
    next([&](const float* p, int j) { return load<vf>(p + i + j * kLanes); });
  if (i < last)
    next([&](const float* p, int j) {
      const int64_t at = i + j * kLanes;
      return last - at >= kLanes ? load<vf>(p + at) : load_part(p + at, last - at);
    });
}

FB_INLINE Range row_range(const float* x, const float* factors, int64_t inputs) {
  vf low[4] = {}, high[4] = {};  // zero is always representable
  each_four(x, factors, 0, inputs, [&](const vf* values) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) low[j] = minimum(low[j], values[j]), high[j] = maximum(high[j], values[j]);
  });
  return {-largest(-minimum(minimum(low[0], low[1]), minimum(low[2], low[3]))),
          largest(maximum(maximum(high[0], high[1]), maximum(high[2], high[3])))};
}

inline void prepare_s8(const float* rows, int64_t stride, int64_t count, int64_t inputs, const float* factors,
                       Range range, void* data, float* scale, int32_t* zero) {
  const auto begin = [&](int64_t row) {
    const Range own = range.low < range.high ? range : row_range(rows + row * stride, factors, inputs);
    const float step = own.high > own.low ? (own.high - own.low) / 255.0f : 1.0f, at = -own.low / step;
    scale[row] = step;
    zero[row] = zero_pair(static_cast<int32_t>((at < 255.0f ? at : 255.0f) + kNearest - kNearest));
  };
  prepare_rows<S8>(count, inputs, data, begin, [&](int64_t row, int64_t first, int64_t last, S8::Stored* to) {
    const vf origin = splat(static_cast<float>(zero_of(zero[row]))), inverse = splat(1.0f / scale[row]);
    vf broken[4] = {};  // zeros, unless something is infinite or not a number
    each_four(rows + row * stride, factors, first, last, [&](const vf* values) {
      vf levels[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        broken[j] += values[j] * 0.0f;
        levels[j] = values[j] * inverse + origin;
      }
      store(to, to_levels(levels));
      to += 4 * kLanes;
    });
    if (any((broken[0] + broken[1]) + (broken[2] + broken[3]) != 0.0f)) scale[row] = __builtin_nanf("");
  });
}

// ---- scores -> inputs ----

template <class P>
void soften(const Scores& scores, void* data, float* share) {
  constexpr float kNothing = -__builtin_inff();
  const int64_t keys = scores.keys, *const seen = scores.seen;
  const float scale = scores.scale, *const bias = scores.bias;
  const bool plain = !bias && scale > 0;
  const float factor = plain ? scale : 1.0f;
  float peaks[kBlockRows];
  vf totals[kBlockRows];
  const auto begin = [&](int64_t r) {
    float* row = scores.data + r * scores.stride;
    const int64_t first = seen ? seen[2 * r] : 0, last = seen ? seen[2 * r + 1] : keys;
    const float* more = bias + r * scores.bias_row_stride;
    const int64_t step = scores.bias_key_stride, whole = bias && step == 1 ? keys / kLanes * kLanes : 0;
    for (int64_t i = 0; i < whole; i += kLanes) store(row + i, load<vf>(row + i) * scale + load<vf>(more + i));
    for (int64_t i = whole; !plain && i < keys; ++i) row[i] = row[i] * scale + (bias ? more[i * step] : 0.0f);
    for (int64_t i = 0; i < first; ++i) row[i] = kNothing;
    for (int64_t i = last; i < round_up(keys, kLanes); ++i) row[i] = kNothing;
    vf top = splat(kNothing);
    for (int64_t i = 0; i < keys; i += kLanes) top = maximum(top, load<vf>(row + i));
    peaks[r] = largest(top) * factor;
    totals[r] = vf{};
    if (peaks[r] == kNothing) {
      for (int64_t i = first; i < last; ++i) row[i] = 0;
      peaks[r] = 0;
    }
  };
  prepare_rows<P>(scores.count, keys, data, begin, [&](int64_t r, int64_t i, int64_t last, typename P::Stored* to) {
    const float* row = scores.data + r * scores.stride;
    const vf peak = splat(peaks[r]);
    // Which keys are at hand depends on the rows beside this one, if not all are seen: then one sum goes through all.
    vf total = seen ? totals[r] : vf{};
    for (; i < last; i += kLanes, to += kLanes) {
      const vf e = exponential(load<vf>(row + i) * factor - peak);
      total += e;
      P::put(to, e);
    }
    totals[r] = seen ? total : totals[r] + total;
  });
  for (int64_t r = 0; r < scores.count; ++r)
    share[r] = seen && seen[2 * r] >= seen[2 * r + 1] ? 0.0f : 1.0f / sum(totals[r]);
}

// ---- keys and values -> packed weights ----

// As many groups as there are lanes, from x on, of which `left` inputs are there; the rest is zeros.
template <class P>
FB_INLINE vi groups_at(const float* x, int64_t left) {
  typename P::Weight groups[kLanes * P::kGroup];
  for (int i = 0; i < kLanes * P::kGroup; i += kLanes) {
    P::put(groups + i, left - i >= kLanes ? load<vf>(x + i) : load_part(x + i, left - i));
  }
  return load<vi>(groups);
}

template <class P>
void pack_keys(const float* rows, int64_t stride, const int64_t* index, int64_t count, int64_t width, void* packed) {
  const int64_t groups = (width + P::kGroup - 1) / P::kGroup;
  for (int64_t first = 0; first < count; first += kPanel<P>) {
    const int64_t columns = count - first < kPanel<P> ? round_up(count - first, kLanes) : kPanel<P>;
    auto* panel = static_cast<typename P::Weight*>(packed) + first * groups * P::kGroup;
    const auto key = [&](int64_t j) { return first + j < count ? rows + index[first + j] * stride : nullptr; };
    for (int64_t j = 0; j < columns; j += kLanes)
      for (int64_t g = 0; g < groups; g += kLanes) {
        vi block[kLanes];
        for (int64_t i = 0; i < kLanes; ++i)
          block[i] = key(j + i) ? groups_at<P>(key(j + i) + g * P::kGroup, width - g * P::kGroup) : vi{};
        zip_rows<kLanes>(block);
        for (int64_t i = 0; i < kLanes && g + i < groups; ++i)
          store(panel + ((g + i) * columns + j) * P::kGroup, block[i]);
      }
  }
}

template <class P>
void pack_values(const float* rows, int64_t stride, const int64_t* index, int64_t count, int64_t width, void* packed) {
  for (int64_t first = 0; first < width; first += kPanel<P>) {
    const int64_t columns = width - first < kPanel<P> ? round_up(width - first, kLanes) : kPanel<P>;
    auto* panel = static_cast<typename P::Weight*>(packed) + first * round_up(count, P::kGroup);
    for (int64_t k = 0; k < count; k += P::kGroup)
      for (int64_t j = 0; j < columns; j += kLanes) {
        const int64_t left = width - first - j;
        vf group[P::kGroup] = {};
        for (int i = 0; i < P::kGroup && k + i < count; ++i) {
          const float* value = rows + index[k + i] * stride + first + j;
          group[i] = left >= kLanes ? load<vf>(value) : load_part(value, left);
        }
        store(panel + k * columns + j * P::kGroup, P::grouped(group));
      }
  }
}

}  // namespace fusebert::FB_ISA
