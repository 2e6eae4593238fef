// Matrix products of one instruction set: rows x packed weights -> tiles -> epilogue, in three precisions.
//
// A precision is a struct that says how inputs and weights are stored and how one group of inputs meets one vector of
// weights. A tile sums its inputs in order, alone in its registers, so a row's bits do not depend on the rows beside
// it.
#pragma once
#include "../kernels.h"
#include "simd.h"

namespace fusebert::FB_ISA {

#if FB_LANES == 16
constexpr int kTileRows = 6, kTileVectors = 4;  // 24 of 32 registers accumulate
#elif FB_LANES == 8
constexpr int kTileRows = 6, kTileVectors = 2;  // 12 of 16
#else
constexpr int kTileRows = 4, kTileVectors = 2;
#endif
constexpr int kPanel = kTileVectors * kLanes;

struct F32 {
  using Stored = float;  // inputs
  using Weight = float;
  using Sum = vf;
  static constexpr int kGroup = 1;
  FB_INLINE vf input(const float* x) { return splat(*x); }
  FB_INLINE vf weight(const float* w) { return load<vf>(w); }
  FB_INLINE vf add(vf sum, vf x, vf w) { return sum + x * w; }
};

#ifdef FB_DPBF16
struct Bf16 {
  using Stored = uint16_t;
  using Weight = uint16_t;
  using Sum = vf;
  static constexpr int kGroup = 2;
  FB_INLINE vi input(const uint16_t* x) { return vi{} + load<int32_t>(x); }
  FB_INLINE vi weight(const uint16_t* w) { return load<vi>(w); }
  FB_INLINE vf add(vf sum, vi x, vi w) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w); }
};
#else
struct Bf16 {  // the same values, multiplied as floats
  using Stored = float;
  using Weight = uint16_t;
  using Sum = vf;
  static constexpr int kGroup = 2;
  struct Pair {
    vf even, odd;
  };
  FB_INLINE Pair input(const float* x) { return {splat(x[0]), splat(x[1])}; }
  FB_INLINE Pair weight(const uint16_t* w) {
    vu bits = load<vu>(w);
    return {(vf)(bits << 16), (vf)(bits & 0xffff0000u)};
  }
  FB_INLINE vf add(vf sum, Pair x, Pair w) { return (sum + x.even * w.even) + x.odd * w.odd; }
};
#endif

#ifdef FB_VNNI
struct S8 {
  using Stored = uint8_t;
  using Weight = int8_t;
  using Sum = vi;
  static constexpr int kGroup = 4;
  FB_INLINE vi input(const uint8_t* x) { return vi{} + load<int32_t>(x); }
  FB_INLINE vi weight(const int8_t* w) { return load<vi>(w); }
  FB_INLINE vi add(vi sum, vi x, vi w) { return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w); }
};
#else
struct S8 {  // bytes widened to 16 bits: multiplying bytes directly (VPMADDUBSW) would saturate
  using Stored = int16_t;
  using Weight = int8_t;
  using Sum = vi;
  static constexpr int kGroup = 2;
  FB_INLINE vi input(const int16_t* x) { return vi{} + load<int32_t>(x); }
  FB_INLINE vs weight(const int8_t* w) { return __builtin_convertvector(load<vb>(w), vs); }
#if defined(FB_MADD) && FB_LANES == 16
  FB_INLINE vi add(vi sum, vi x, vs w) { return sum + (vi)_mm512_madd_epi16((__m512i)x, (__m512i)w); }
#elif defined(FB_MADD)
  FB_INLINE vi add(vi sum, vi x, vs w) { return sum + (vi)_mm256_madd_epi16((__m256i)x, (__m256i)w); }
#else
  FB_INLINE vi add(vi sum, vi x, vs w) {
    vi pair = (vi)w;
    return sum + (x << 16 >> 16) * (pair << 16 >> 16) + (x >> 16) * (pair >> 16);
  }
#endif
};
#endif

FB_INLINE vf activate(int32_t activation, vf x) {
  switch (activation) {
    case FB_GELU_ERF: return gelu_erf(x);
    case FB_GELU_TANH: return gelu_tanh(x);
    case FB_GELU_QUICK: return gelu_quick(x);
    case FB_RELU: return x < 0.0f ? vf{} : x;  // a NaN stays
    case FB_TANH: return hyperbolic_tangent(x);
    default: return x;
  }
}

FB_INLINE vf to_float(vf sum, const InputRows&, const PackedWeights&, int64_t, int64_t) { return sum; }
FB_INLINE vf to_float(vi sum, const InputRows& rows, const PackedWeights& weights, int64_t row, int64_t column) {
  vi exact = sum - rows.zero[row] * load<vi>(weights.sum + column);
  return __builtin_convertvector(exact, vf) * (load<vf>(weights.scale + column) * rows.scale[row]);
}

// The epilogue of a tile. Not unrolled into every tile: it would be most of the library's code.
template <class P>
[[gnu::noinline]] void finish(const typename P::Sum* sums, int height, int vectors, const InputRows& rows, int64_t row,
                              const PackedWeights& weights, int64_t column, const Epilogue& epilogue) {
  for (int v = 0; v < vectors; ++v) {
    const int64_t at = column + v * kLanes, left = weights.outputs - at;
    const vf bias = epilogue.bias ? load<vf>(epilogue.bias + at) : vf{};
    for (int r = 0; r < height; ++r) {
      vf y = activate(epilogue.activation, to_float(sums[r * vectors + v], rows, weights, row + r, at) + bias);
      const float* residual =
          epilogue.residual ? epilogue.residual + (row + r) * epilogue.residual_stride + at : nullptr;
      float* out = epilogue.out + (row + r) * epilogue.out_stride + at;
      if (left >= kLanes) {
        store(out, residual ? y + load<vf>(residual) : y);
      } else {
        store_part(out, residual ? y + load_part(residual, left) : y, left);
      }
    }
  }
}

template <class P, int Rows, int Vectors>
void tile(const InputRows& rows, int64_t row, const PackedWeights& weights, const void* panel, int64_t column,
          const Epilogue& epilogue) {
  typename P::Sum sums[Rows][Vectors] = {};
  const auto* x = static_cast<const typename P::Stored*>(rows.data) + row * rows.stride;
  const auto* w = static_cast<const typename P::Weight*>(panel);
  const int64_t groups = (weights.inputs + P::kGroup - 1) / P::kGroup;
  for (int64_t k = 0; k < groups; ++k) {
    decltype(P::weight(w)) held[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) held[v] = P::weight(w + v * kLanes * P::kGroup);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      auto input = P::input(x + r * rows.stride + k * P::kGroup);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sums[r][v] = P::add(sums[r][v], input, held[v]);
    }
    w += Vectors * kLanes * P::kGroup;
  }
  finish<P>(&sums[0][0], Rows, Vectors, rows, row, weights, column, epilogue);
}

template <class P>
using Tile = void (*)(const InputRows&, int64_t, const PackedWeights&, const void*, int64_t, const Epilogue&);

// tiles[rows - 1][vectors - 1]
template <class P>
constexpr Tile<P> kTiles[6][4] = {
#define FB_TILE(r, v) \
  (r <= kTileRows && v <= kTileVectors) ? &tile<P, (r <= kTileRows ? r : 1), (v <= kTileVectors ? v : 1)> : nullptr
#define FB_TILES(r) {FB_TILE(r, 1), FB_TILE(r, 2), FB_TILE(r, 3), FB_TILE(r, 4)}
    FB_TILES(1), FB_TILES(2), FB_TILES(3), FB_TILES(4),
    FB_TILES(5), FB_TILES(6)
#undef FB_TILES
#undef FB_TILE
};

template <class P>
void multiply(const InputRows& rows, int64_t count, const PackedWeights& weights, int64_t first, int64_t last,
              const Epilogue& epilogue) {
  const int64_t panel_elements = round_up(weights.inputs, P::kGroup) * kPanel;
  for (int64_t p = first; p < last; ++p) {
    const int64_t column = p * kPanel, left = weights.outputs - column;
    const int vectors = left >= kPanel ? kTileVectors : static_cast<int>((left + kLanes - 1) / kLanes);
    const auto* panel = static_cast<const typename P::Weight*>(weights.data) + p * panel_elements;
    for (int64_t row = 0; row < count; row += kTileRows) {
      const int height = count - row < kTileRows ? static_cast<int>(count - row) : kTileRows;
      kTiles<P>[height - 1][vectors - 1](rows, row, weights, panel, column, epilogue);
    }
  }
}

// ---- rows of floats -> inputs ----

FB_INLINE float bf16_value(float x) {
  uint32_t bits = load<uint32_t>(&x);
  bits = x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u : 0x7fc00000u;
  return load<float>(&bits);
}
FB_INLINE void put_bf16(float* to, float x) { *to = bf16_value(x); }
FB_INLINE void put_bf16(uint16_t* to, float x) {
  float rounded = bf16_value(x);
  *to = static_cast<uint16_t>(load<uint32_t>(&rounded) >> 16);
}
FB_INLINE void put_bf16(float* to, vf x) { store(to, (vf)(to_bf16(x) << 16)); }
FB_INLINE void put_bf16(uint16_t* to, vf x) { store(to, __builtin_convertvector(to_bf16(x), vh)); }

inline void prepare_bf16(const float* rows, int64_t stride, int64_t count, int64_t inputs, const float*, Range,
                         void* data, float*, int32_t*) {
  const int64_t padded = round_up(inputs, Bf16::kGroup);
  for (int64_t r = 0; r < count; ++r) {
    const float* x = rows + r * stride;
    auto* to = static_cast<Bf16::Stored*>(data) + r * padded;
    int64_t i = 0;
    for (; i + kLanes <= inputs; i += kLanes) put_bf16(to + i, load<vf>(x + i));
    for (; i < inputs; ++i) put_bf16(to + i, x[i]);
    for (; i < padded; ++i) to[i] = 0;
  }
}

// The elements i .. i + lanes of a row, zeros past its end, times their factors.
FB_INLINE vf scaled(const float* x, const float* factors, int64_t i, int64_t inputs) {
  const int64_t left = inputs - i;
  if (left >= kLanes) return factors ? load<vf>(x + i) * load<vf>(factors + i) : load<vf>(x + i);
  return factors ? load_part(x + i, left) * load_part(factors + i, left) : load_part(x + i, left);
}

FB_INLINE Range row_range(const float* x, const float* factors, int64_t inputs) {
  vf low = {}, high = {};  // zero is always representable
  for (int64_t i = 0; i < inputs; i += kLanes) {
    const vf value = scaled(x, factors, i, inputs);
    low = minimum(low, value);
    high = maximum(high, value);
  }
  return {-largest(-low), largest(high)};
}

FB_INLINE vf level(vf x) {  // 0 .. 255; a NaN becomes 0
  return nearest(minimum(maximum(x, vf{}), splat(255.0f)));
}

inline void prepare_s8(const float* rows, int64_t stride, int64_t count, int64_t inputs, const float* factors,
                       Range range, void* data, float* scale, int32_t* zero) {
  typedef S8::Stored Levels __attribute__((vector_size(sizeof(S8::Stored) * kLanes)));
  const int64_t padded = round_up(inputs, S8::kGroup);
  for (int64_t r = 0; r < count; ++r) {
    const float* x = rows + r * stride;
    auto* to = static_cast<S8::Stored*>(data) + r * padded;
    const Range own = range.low < range.high ? range : row_range(x, factors, inputs);
    const float step = own.high > own.low ? (own.high - own.low) / 255.0f : 1.0f;
    const vf origin = level(splat(-own.low / step)), inverse = splat(1.0f / step);
    vi broken = {};
    for (int64_t i = 0; i < inputs; i += kLanes) {
      const vf value = scaled(x, factors, i, inputs);
      broken |= value - value != 0.0f;  // infinite or not a number
      const auto levels = __builtin_convertvector(__builtin_convertvector(level(value * inverse + origin), vi), Levels);
      if (inputs - i >= kLanes) {
        store(to + i, levels);
      } else {
        for (int64_t j = 0; j < inputs - i; ++j) to[i + j] = levels[j];
      }
    }
    for (int64_t i = inputs; i < padded; ++i) to[i] = 0;
    scale[r] = any(broken) ? __builtin_nanf("") : step;
    zero[r] = static_cast<int32_t>(origin[0]);
  }
}

// ---- keys and values -> packed weights ----

FB_INLINE void put_weight(float* to, float x) { *to = x; }
FB_INLINE void put_weight(uint16_t* to, float x) { put_bf16(to, x); }

template <class P>
void pack_keys(const float* rows, int64_t stride, const int64_t* index, int64_t count, int64_t width, void* packed) {
  const int64_t padded = round_up(width, P::kGroup);
  for (int64_t first = 0; first < count; first += kPanel) {
    const int64_t columns = count - first < kPanel ? round_up(count - first, kLanes) : kPanel;
    auto* panel = static_cast<typename P::Weight*>(packed) + first * padded;
    for (int64_t j = 0; j < columns; ++j) {
      const float* key = first + j < count ? rows + index[first + j] * stride : nullptr;
      for (int64_t d = 0; d < padded; ++d) {
        auto* to = panel + (d / P::kGroup * columns + j) * P::kGroup + d % P::kGroup;
        put_weight(to, key && d < width ? key[d] : 0.0f);
      }
    }
  }
}

template <class P>
void pack_values(const float* rows, int64_t stride, const int64_t* index, int64_t count, int64_t width, void* packed) {
  const int64_t padded = round_up(count, P::kGroup);
  for (int64_t first = 0; first < width; first += kPanel) {
    const int64_t columns = width - first < kPanel ? round_up(width - first, kLanes) : kPanel;
    auto* panel = static_cast<typename P::Weight*>(packed) + first * padded;
    for (int64_t k = 0; k < padded; ++k) {
      const float* value = k < count ? rows + index[k] * stride + first : nullptr;
      auto* to = panel + k / P::kGroup * columns * P::kGroup + k % P::kGroup;
      for (int64_t j = 0; j < columns; ++j)
        put_weight(to + j * P::kGroup, value && first + j < width ? value[j] : 0.0f);
    }
  }
}

}  // namespace fusebert::FB_ISA
