// Vectors of one instruction set: the compiler's own vector types, so that every kernel is written once and compiled
// per ISA. Intrinsics appear only where the language has no word, or compilers make more of it than the machine needs.
//
// The build defines FB_ISA (a namespace), FB_LANES, and what the ISA has: on x86 FB_MADD / FB_VNNI / FB_DPBF16 /
// FB_AMX, on Arm FB_DOT (products of signed bytes) / FB_I8MM (of unsigned and signed ones) / FB_BFDOT.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(FB_MADD) || defined(FB_VNNI) || defined(FB_DPBF16)
#include <immintrin.h>
#elif defined(FB_DOT)
#include <arm_neon.h>
#endif

#define FB_INLINE [[gnu::always_inline]] static inline

namespace fusebert::FB_ISA {

constexpr int kLanes = FB_LANES;
typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t vi __attribute__((vector_size(4 * kLanes)));
typedef uint32_t vu __attribute__((vector_size(4 * kLanes)));
typedef uint16_t vh __attribute__((vector_size(2 * kLanes)));
typedef uint8_t vb __attribute__((vector_size(kLanes)));

template <class V, class T>
FB_INLINE V load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class T>
FB_INLINE void store(T* p, V v) {
  std::memcpy(p, &v, sizeof v);
}
FB_INLINE vf splat(float x) { return x - vf{}; }  // not +: that would turn -0 into 0, and so cost an addition
FB_INLINE vf magnitude(vf x) { return (vf)((vi)x & 0x7fffffff); }
constexpr float kNearest = 12582912.0f;  // added to |x| < 2^22, no fraction is left but the even one of two

// By width, since compilers make more of it than the machine needs:
// - load_part, store_part: the first n (< lanes) elements, none if n is negative; the rest reads as `fill`;
// - minimum, maximum: b where either is NaN;
// - any: whether a comparison holds for one lane at least;
// - to_levels: the nearest whole numbers of four vectors in 0 .. 255, as bytes in order; a NaN becomes 0;
// - permuted: the lanes of x that index names.
#if FB_LANES == 16
FB_INLINE __mmask16 first(int64_t n) { return static_cast<__mmask16>(n > 0 ? (1u << n) - 1 : 0); }
FB_INLINE vf load_part(const float* p, int64_t n, float fill = 0) {
  return (vf)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(n), p);
}
FB_INLINE void store_part(float* p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, first(n), (__m512)v); }
FB_INLINE vf minimum(vf a, vf b) { return (vf)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b); }
FB_INLINE vf maximum(vf a, vf b) { return (vf)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }
FB_INLINE bool any(vi mask) { return _mm512_movepi32_mask((__m512i)mask) != 0; }
FB_INLINE vf permuted(vf x, vi index) { return (vf)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)index, (__m512)x); }
FB_INLINE vi to_levels(const vf* x) {
  __m512i whole[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    whole[i] = _mm512_maskz_cvt_roundps_epi32(0xffff, (__m512)minimum(splat(255.0f), x[i]),
                                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512i bytes =
      _mm512_packus_epi16(_mm512_packs_epi32(whole[0], whole[1]), _mm512_packs_epi32(whole[2], whole[3]));
  return __builtin_shufflevector((vi)bytes, (vi)bytes, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}
#else
FB_INLINE vf load_part(const float* p, int64_t n, float fill = 0) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = i < n ? p[i] : fill;
  return load<vf>(lane);
}
FB_INLINE void store_part(float* p, vf v, int64_t n) {
  float lane[kLanes];
  store(lane, v);
  for (int i = 0; i < n; ++i) p[i] = lane[i];
}
#if FB_LANES == 8
FB_INLINE vf minimum(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
FB_INLINE vf maximum(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
FB_INLINE bool any(vi mask) { return _mm256_movemask_epi8((__m256i)mask) != 0; }
FB_INLINE vf permuted(vf x, vi index) { return (vf)_mm256_permutevar8x32_ps((__m256)x, (__m256i)index); }
FB_INLINE vi to_levels(const vf* x) {
  __m256i whole[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    whole[i] = (__m256i)((vi)(minimum(splat(255.0f), maximum(x[i], vf{})) + kNearest) - (vi)splat(kNearest));
  const __m256i bytes =
      _mm256_packus_epi16(_mm256_packs_epi32(whole[0], whole[1]), _mm256_packs_epi32(whole[2], whole[3]));
  return __builtin_shufflevector((vi)bytes, (vi)bytes, 0, 4, 1, 5, 2, 6, 3, 7);
}
#else
FB_INLINE vf minimum(vf a, vf b) { return a < b ? a : b; }
FB_INLINE vf maximum(vf a, vf b) { return a > b ? a : b; }
FB_INLINE bool any(vi mask) {
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= mask[i];
  return all != 0;
}
FB_INLINE vf permuted(vf x, vi index) {
  vf lanes = {};
  for (int i = 0; i < kLanes; ++i) lanes[i] = x[index[i]];
  return lanes;
}
FB_INLINE vi to_levels(const vf* x) {
  vb bytes[4];
  for (int i = 0; i < 4; ++i)
    bytes[i] = __builtin_convertvector((vi)(minimum(maximum(x[i], vf{}), splat(255.0f)) + kNearest), vb);
  return load<vi>(bytes);
}
#endif
#endif

// sum + a * b, where each lane of a and b is two numbers of 16 bits.
FB_INLINE vi add_pairs(vi sum, vi a, vi b) {
#if defined(FB_VNNI)
  return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(FB_MADD) && FB_LANES == 16
  return sum + (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(FB_MADD)
  return sum + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

template <int Away, class V, int... Lane>
FB_INLINE V swapped(V v, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(v, v, (Lane ^ Away)...);
}
// All lanes joined into one: each with the one half a vector away, then a quarter, and so on.
template <int Away = kLanes / 2, class V, class Join>
FB_INLINE auto joined(V v, const Join& join) {
  v = join(v, swapped<Away>(v, std::make_integer_sequence<int, kLanes>()));
  if constexpr (Away > 1)
    return joined<Away / 2>(v, join);
  else
    return v[0];
}
FB_INLINE float sum(vf v) {
  return joined(v, [](vf a, vf b) { return a + b; });
}
FB_INLINE float largest(vf v) { return joined(v, maximum); }

// For x up to 88. Relative error below 2e-7; exactly 0 below -87.3 (so a masked key weighs nothing), and NaN stays NaN.
FB_INLINE vf exponential(vf x) {
  const vf shifted = x * 1.44269504f + kNearest, n = shifted - kNearest;
  const vf r = x - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts
  vf p = splat(1.39411190e-3f);
  p = p * r + 8.37513432e-3f;
  p = p * r + 4.16663513e-2f;
  p = p * r + 0.166664153f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const vf power = (vf)(((vu)shifted << 23) + 0x3f800000u);  // n is in the low bits
  return x < -87.3f ? vf{} : p * power;
}

// Activations by the names of FB_ACTIVATION_LIST, and what they need.
FB_INLINE vf identity(vf x) { return x; }
FB_INLINE vf relu(vf x) { return x < 0.0f ? vf{} : x; }  // a NaN stays
FB_INLINE vf sigmoid(vf x) { return 1.0f / (exponential(minimum(splat(88.0f), -x)) + 1.0f); }
FB_INLINE vf tanh(vf x) {
  vf t = 1.0f - 2.0f / (exponential(minimum(splat(88.0f), magnitude(x) * 2.0f)) + 1.0f);
  vf series = x - x * x * x * 0.333333333f;  // where 1 - (almost 1) would lose digits
  return magnitude(x) < 0.02f ? series : (x < 0.0f ? -t : t);
}
// x Phi(x), with Phi - 1/2 as an odd rational function where it is not flat. Absolute error below 2e-7 max(1, |x|).
FB_INLINE vf gelu_erf(vf x) {
  const vf above = maximum(splat(-5.6f), x), inside = minimum(splat(5.6f), above), square = inside * inside;
  vf p = splat(2.21454286e-8f);
  p = p * square + 6.35652259e-6f;
  p = p * square + 1.73849243e-4f;
  p = p * square + 4.70724981e-3f;
  p = p * square + 3.43759581e-2f;
  p = p * square + 0.398942232f;
  vf q = splat(1.18021478e-6f);
  q = q * square + 7.51014595e-5f;
  q = q * square + 1.91296951e-3f;
  q = q * square + 2.89400015e-2f;
  q = q * square + 0.252833456f;
  q = q * square + 1.0f;
  return above * (inside * p / q + 0.5f);
}
// The same with an absolute error below 2e-4, for a third of the time.
FB_INLINE vf gelu_erf_coarse(vf x) {
  const vf above = maximum(splat(-3.9f), x), inside = minimum(splat(3.9f), above), square = inside * inside;
  vf p = splat(2.27945502e-8f);
  p = p * square - 1.59685182e-6f;
  p = p * square + 4.78805926e-5f;
  p = p * square - 8.12974487e-4f;
  p = p * square + 8.76615978e-3f;
  p = p * square - 6.45575388e-2f;
  p = p * square + 0.397871292f;
  return above * (inside * p + 0.5f);
}
FB_INLINE vf gelu_tanh(vf x) { return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x)); }
FB_INLINE vf silu(vf x) { return x * sigmoid(x); }
FB_INLINE vf gelu_quick(vf x) { return x * sigmoid(1.702f * x); }

}  // namespace fusebert::FB_ISA
