// Matrix products of one instruction set: rows x packed weights -> tiles -> epilogue, in three precisions.
//
// A precision is a struct that says how inputs and weights are stored and how one group of inputs meets one vector of
// weights. A tile sums its inputs in order, alone in its registers, so a row's bits do not depend on the rows beside
// it.
#pragma once
#include "../kernels.h"
#include "../levels.h"
#include "simd.h"

namespace fusebert::FB_ISA {

// Rows and vectors of a tile: with a vector of weights for each column and one for the inputs, all registers.
#if FB_LANES == 16 || defined(FB_DOT)
constexpr int kTileRows = 8, kTileVectors = 3;
#elif FB_LANES == 8
constexpr int kTileRows = 6, kTileVectors = 2;
#else
constexpr int kTileRows = 4, kTileVectors = 3;
#endif

// What is kept in cache of a panel. Weights that one instruction multiplies four at a time are read so seldom that the
// second-level cache serves as well as the first, and sums are put aside less often.
constexpr int kFirstLevel = 28 * 1024, kSecondLevel = 160 * 1024;

struct F32 {
  static constexpr bool kCoarse = false;    // results are not worth more digits than four
  static constexpr bool kRowByRow = false;  // inputs lie row by row, not a group of each row of a tile in turn
  using Stored = float;                     // inputs
  using Weight = float;
  using Sum = vf;
  static constexpr int kGroup = 1, kRows = kTileRows, kVectors = kTileVectors;
  static constexpr int kJoined = 1;  // groups that are multiplied in one step
  static constexpr int kSliceBytes = kFirstLevel;
  FB_INLINE void put(float* to, vf x) { store(to, x); }       // a vector of a row, as inputs
  FB_INLINE vi grouped(const vf* rows) { return (vi)*rows; }  // a vector of each row of a group, as weights
  FB_INLINE vf input(const float* x) { return splat(*x); }
  FB_INLINE vf weight(const float* w) { return load<vf>(w); }
#if FB_LANES == 16
  FB_INLINE vf add(vf sum, vf x, vf w) {  // told, not asked: compilers fetch ahead until they run out of registers
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
#else
  FB_INLINE vf add(vf sum, vf x, vf w) { return sum + x * w; }
#endif
};

// Rows and vectors that are summed at a time by what multiplies bytes and bf16.
#ifdef FB_AMX
constexpr bool kOnTiles = true;
constexpr int kFastRows = 32, kFastVectors = 2, kFastJoined = 16;
#else
constexpr bool kOnTiles = false;
constexpr int kFastRows = kTileRows, kFastVectors = kTileVectors, kFastJoined = 1;
#endif

#if defined(FB_DPBF16) || defined(FB_BFDOT)
struct Bf16 {
  static constexpr bool kCoarse = false, kRowByRow = kOnTiles;
  using Stored = uint16_t;
  using Weight = uint16_t;
  using Sum = vf;
  static constexpr int kGroup = 2, kRows = kFastRows, kVectors = kFastVectors, kJoined = kFastJoined;
#ifdef FB_DPBF16
  static constexpr int kSliceBytes = kSecondLevel;
  FB_INLINE vh rounded(vf x) { return (vh)_mm512_cvtneps_pbh((__m512)x); }
  FB_INLINE vf add(vf sum, vi x, vi w) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w); }
#else
  static constexpr int kSliceBytes = kFirstLevel;
  FB_INLINE vh rounded(vf x) { return (vh)vcvt_bf16_f32((float32x4_t)x); }
  FB_INLINE vf add(vf sum, vi x, vi w) { return (vf)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)x, (bfloat16x8_t)w); }
#endif
  FB_INLINE void put(uint16_t* to, vf x) { store(to, rounded(x)); }
  FB_INLINE vi grouped(const vf* rows) {
    return (vi)(__builtin_convertvector(rounded(rows[0]), vu) | __builtin_convertvector(rounded(rows[1]), vu) << 16);
  }
  FB_INLINE vi input(const uint16_t* x) { return vi{} + load<int32_t>(x); }
  FB_INLINE vi weight(const uint16_t* w) { return load<vi>(w); }
};
#else
struct Bf16 : F32 {             // the same values, held and multiplied as floats
  FB_INLINE vf rounded(vf x) {  // to the nearest, the even one of two; NaN stays NaN
    const vu bits = (vu)x;
    return (vf)(x == x ? (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u : vu{} + 0x7fc00000u);
  }
  FB_INLINE void put(float* to, vf x) { store(to, rounded(x)); }
  FB_INLINE vi grouped(const vf* rows) { return (vi)rounded(*rows); }
};
#endif

struct S8 {  // levels of a row, times signed bytes
  using Stored = uint8_t;
  using Weight = int8_t;
  using Sum = vi;
#if defined(FB_MADD) && FB_LANES == 8
  static constexpr int kRows = 5;  // the steps of a product need registers too
#else
  static constexpr int kRows = kFastRows;
#endif
  static constexpr int kGroup = 4, kVectors = kFastVectors;
  static constexpr bool kCoarse = true, kRowByRow = kOnTiles;
#if !defined(FB_DOT) || defined(FB_I8MM)
  FB_INLINE vi input(const uint8_t* x) { return vi{} + load<int32_t>(x); }
#endif
  FB_INLINE vi weight(const int8_t* w) { return load<vi>(w); }
#ifdef FB_VNNI
  static constexpr int kJoined = kFastJoined, kSliceBytes = kSecondLevel;
  FB_INLINE vi add(vi sum, vi x, vi w) { return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w); }
#elif defined(FB_MADD)
  static constexpr int kJoined = 2, kSliceBytes = kFirstLevel;  // four products add up in 16 bits (see kSumLimit)
#if FB_LANES == 16
  FB_INLINE vi pairs(vi x, vi w) { return (vi)_mm512_maddubs_epi16((__m512i)x, (__m512i)w); }
  FB_INLINE vi both(vi a, vi b) { return (vi)_mm512_add_epi16((__m512i)a, (__m512i)b); }
  FB_INLINE vi widen(vi a) { return (vi)_mm512_madd_epi16((__m512i)a, _mm512_set1_epi16(1)); }
#else
  FB_INLINE vi pairs(vi x, vi w) { return (vi)_mm256_maddubs_epi16((__m256i)x, (__m256i)w); }
  FB_INLINE vi both(vi a, vi b) { return (vi)_mm256_add_epi16((__m256i)a, (__m256i)b); }
  FB_INLINE vi widen(vi a) { return (vi)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi16(1)); }
#endif
  FB_INLINE vi in_order(vi sum) {  // integers may be added in any order; trying others, compilers run out of registers
    __asm__("" : "+v"(sum));
    return sum;
  }
  FB_INLINE vi add(vi sum, vi x, vi w) { return in_order(sum + widen(pairs(x, w))); }
  FB_INLINE vi add(vi sum, vi x, vi w, vi next_x, vi next_w) {
    return in_order(sum + widen(both(pairs(x, w), pairs(next_x, next_w))));
  }
#elif defined(FB_I8MM)
  static constexpr int kJoined = 1, kSliceBytes = kFirstLevel;
  FB_INLINE vi add(vi sum, vi x, vi w) { return (vi)vusdotq_s32((int32x4_t)sum, (uint8x16_t)x, (int8x16_t)w); }
#elif defined(FB_DOT)  // inputs as signed bytes, 128 less than they are: Columns makes up for it
  static constexpr int kJoined = 1, kSliceBytes = kFirstLevel;
  FB_INLINE vi input(const uint8_t* x) { return vi{} + (load<int32_t>(x) ^ static_cast<int32_t>(0x80808080)); }
  FB_INLINE vi add(vi sum, vi x, vi w) { return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)x, (int8x16_t)w); }
#else
  static constexpr int kJoined = 1, kSliceBytes = kFirstLevel;
  FB_INLINE vi add(vi sum, vi x, vi w) {
    for (int shift = 24; shift >= 0; shift -= 8) sum += (vi)((vu)x << shift >> 24) * (w << shift >> 24);
    return sum;
  }
#endif
};

template <class P>
constexpr int kPanel = P::kVectors * kLanes;
// Groups of inputs that are summed at a time: so much of a panel stays in cache while rows pass by.
template <class P>
constexpr int kSlice = P::kSliceBytes / (4 * (kPanel<P> + P::kRows));

constexpr int kStride = 4;  // groups from one fetch of memory to the next
constexpr int kLine = 64;   // bytes that one fetch brings

// The sums of a vector of columns -> floats, row by row. What belongs to the columns is read once: compilers must
// assume that storing results changes it.
template <class Sum>
struct Columns;
template <>
struct Columns<vf> {
  Columns(const PackedWeights&, int64_t) {}
  [[gnu::always_inline]] vf to_float(vf sum, const InputRows& rows, int64_t row) const {
    return rows.scale ? sum * rows.scale[row] : sum;
  }
};
template <>
struct Columns<vi> {
  Columns(const PackedWeights& weights, int64_t column)
      : scale(load<vf>(weights.scale + column)), origin(load<vi>(weights.origin + column)) {
#if defined(FB_DOT) && !defined(FB_I8MM)
    less = add_pairs(vi{}, origin, vi{} + zero_pair(128));
#endif
  }
  [[gnu::always_inline]] vf to_float(vi sum, const InputRows& rows, int64_t row) const {
    return __builtin_convertvector(add_pairs(sum - less, origin, vi{} + rows.zero[row]), vf) *
           (scale * rows.scale[row]);
  }
  vf scale;
  vi origin, less{};
};

// The epilogue of a tile.
template <class P, class Activate>
FB_INLINE void finish(const typename P::Sum* sums, int height, int vectors, const InputRows& rows, int64_t row,
                      const PackedWeights& weights, int64_t column, const Epilogue& epilogue, Activate activate) {
  for (int v = 0; v < vectors; ++v, column += kLanes) {
    const Columns<typename P::Sum> columns(weights, column);
    const vf bias = epilogue.bias ? load<vf>(epilogue.bias + column) : splat(-0.0f);  // which changes nothing
    const int64_t left = weights.outputs - column, out_stride = epilogue.out_stride, stride = epilogue.residual_stride;
    float* out = epilogue.out + row * out_stride + column;
    const float* residual = epilogue.residual ? epilogue.residual + row * stride + column : nullptr;
    for (int r = 0; r < height; ++r) {
      vf value = activate(columns.to_float(sums[r * vectors + v], rows, row + r) + bias);
      if (residual) value += left >= kLanes ? load<vf>(residual + r * stride) : load_part(residual + r * stride, left);
      if (left >= kLanes)
        store(out + r * out_stride, value);
      else
        store_part(out + r * out_stride, value, left);
    }
  }
}

template <class P>
using Finish = void (*)(const typename P::Sum*, int, int, const InputRows&, int64_t, const PackedWeights&, int64_t,
                        const Epilogue&);

// By activation; of one function each, not unrolled into every tile: that would be most of the library's code.
template <class P>
constexpr Finish<P> kFinish[] = {
#define FB_FINISH(NAME, name, number)                                                                   \
  [](const typename P::Sum* sums, int height, int vectors, const InputRows& rows, int64_t row,          \
     const PackedWeights& weights, int64_t column, const Epilogue& epilogue) {                          \
    finish<P>(sums, height, vectors, rows, row, weights, column, epilogue,                              \
              [](vf x) { return P::kCoarse && number == FB_GELU_ERF ? gelu_erf_coarse(x) : name(x); }); \
  },
    FB_ACTIVATION_LIST(FB_FINISH)
#undef FB_FINISH
};

// Adds the products of some groups of inputs to the sums of a tile, which begin as zeros if this is the first slice.
// On the way, memory from `ahead` on is fetched, `step` bytes at a time.
template <class P, int Rows, int Vectors>
void tile(const void* inputs, const void* panel, int64_t groups, bool first, typename P::Sum* sums, const char* ahead,
          int64_t step) {
  typename P::Sum held[Rows][Vectors] = {};
  if (!first) {
#pragma GCC unroll 24
    for (int i = 0; i < Rows * Vectors; ++i) held[i / Vectors][i % Vectors] = sums[i];
  }
  const auto* x = static_cast<const typename P::Stored*>(inputs);
  const auto* w = static_cast<const typename P::Weight*>(panel);
  const auto input = [&](int group, int r) { return P::input(x + (group * Rows + r) * P::kGroup); };
  const auto weight = [&](int group, int v) { return P::weight(w + (group * Vectors + v) * kLanes * P::kGroup); };
  const auto pass = [&](int groups) { x += groups * Rows * P::kGroup, w += groups * Vectors * kLanes * P::kGroup; };
  const auto add_group = [&] {
    decltype(weight(0, 0)) weights[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) weights[v] = weight(0, v);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const auto one = input(0, r);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) held[r][v] = P::add(held[r][v], one, weights[v]);
    }
    pass(1);
  };
  const auto add_joined = [&] {
    if constexpr (P::kJoined == 2) {
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const auto one = input(0, r), next = input(1, r);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) held[r][v] = P::add(held[r][v], one, weight(0, v), next, weight(1, v));
      }
      pass(2);
    } else {
      add_group();
    }
  };
  int64_t k = 0;
  for (; k + kStride <= groups; k += kStride, ahead += step) {
    for (int64_t line = 0; line < step; line += kLine) __builtin_prefetch(ahead + line, 0, 2);
#pragma GCC unroll 4
    for (int i = 0; i < kStride; i += P::kJoined) add_joined();
  }
  for (; k + P::kJoined <= groups; k += P::kJoined) add_joined();
  for (; k < groups; ++k) add_group();
#pragma GCC unroll 24
  for (int i = 0; i < Rows * Vectors; ++i) sums[i] = held[i / Vectors][i % Vectors];
}

template <class P>
using Tile = void (*)(const void*, const void*, int64_t, bool, typename P::Sum*, const char*, int64_t);

// tiles[rows - 1][vectors - 1]
template <class P>
constexpr Tile<P> kTiles[8][3] = {
#define FB_TILE(r, v) \
  (r <= P::kRows && v <= P::kVectors) ? &tile<P, (r <= P::kRows ? r : 1), (v <= P::kVectors ? v : 1)> : nullptr
#define FB_TILES(r) {FB_TILE(r, 1), FB_TILE(r, 2), FB_TILE(r, 3)}
    FB_TILES(1), FB_TILES(2), FB_TILES(3), FB_TILES(4), FB_TILES(5),
    FB_TILES(6), FB_TILES(7), FB_TILES(8)
#undef FB_TILES
#undef FB_TILE
};

// How sums are made where rows are interleaved; amx.h has the other way.
template <class P>
class Tiles {
 public:
  static void add(const void* inputs, int64_t, const void* panel, int64_t groups, bool first, int height, int vectors,
                  typename P::Sum* sums, const char* ahead, int64_t step) {
    kTiles<P>[height - 1][vectors - 1](inputs, panel, groups, first, sums, ahead, step);
  }
};

template <class P>
void multiply(const InputRows& rows, int64_t count, const PackedWeights& weights, int64_t first, int64_t last,
              const Epilogue& epilogue) {
  alignas(64) typename P::Sum sums[(kBlockRows + P::kRows - 1) / P::kRows][P::kRows * P::kVectors];
  const int64_t groups = (weights.inputs + P::kGroup - 1) / P::kGroup, tiles = (count + P::kRows - 1) / P::kRows;
  const int64_t slices = (groups + kSlice<P> - 1) / kSlice<P>;
  const int64_t slice = round_up((groups + slices - 1) / slices, P::kJoined);
  const int rest = static_cast<int>(count - (tiles - 1) * P::kRows);  // rows of the last tile
  Tiles<P> sum;
  for (int64_t p = first; p < last; ++p) {
    const int64_t column = p * kPanel<P>, left = weights.outputs - column;
    const int vectors = left >= kPanel<P> ? P::kVectors : static_cast<int>((left + kLanes - 1) / kLanes);
    const int64_t width = vectors * kLanes * P::kGroup;
    const auto* panel = static_cast<const typename P::Weight*>(weights.data) + column * groups * P::kGroup;
    for (int64_t g = 0; g < groups; g += slice) {
      const int64_t number = groups - g < slice ? groups - g : slice;
      const bool done = g + number == groups;
      const auto* packed = panel + g * width;
      // While rows pass by, what comes next is fetched: the weights that follow, and where the results go.
      const char* ahead = reinterpret_cast<const char*>(packed + number * width);
      const int64_t step = kStride * width * static_cast<int64_t>(sizeof *packed) / tiles,
                    share = slice / kStride * step;
      for (int64_t t = 0; t < tiles; ++t, ahead += share) {
        const int height = t + 1 < tiles ? P::kRows : rest;
        const int64_t row = t * P::kRows;
        const auto* inputs = static_cast<const typename P::Stored*>(rows.data) +
                             (row * groups + g * (P::kRowByRow ? 1 : height)) * P::kGroup;
        if (done)
          for (int64_t r = row; r < row + height; ++r) {
            __builtin_prefetch(epilogue.out + r * epilogue.out_stride + column, 1);
            if (epilogue.residual) __builtin_prefetch(epilogue.residual + r * epilogue.residual_stride + column);
          }
        sum.add(inputs, groups * 4, packed, number, g == 0, height, vectors, sums[t], ahead, step);
        if (done) kFinish<P>[epilogue.activation](sums[t], height, vectors, rows, row, weights, column, epilogue);
      }
    }
  }
}

}  // namespace fusebert::FB_ISA
