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
    vf total = {};
    for (int64_t i = 0; i < whole; i += kLanes) total += load<vf>(x + i);
    if (rest) total += load_part(x + whole, rest);
    const float mean = sum(total) * share;
    vf squares = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
      const vf d = load<vf>(x + i) - mean;
      squares += d * d;
    }
    if (rest) {
      const vf d = load_part(x + whole, rest, mean) - mean;
      squares += d * d;
    }
    const float inverse = 1.0f / __builtin_sqrtf(sum(squares) * share + norm.epsilon);
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

// Levels of weights. Where two neighbours add up to too much, each gives half of it.
FB_INLINE vf quantized(vf x, float inverse) {
  const vf levels = minimum(splat(127.0f), maximum(splat(-127.0f), nearest(x * inverse)));
  const vf excess = maximum(vf{}, magnitude(levels + swap_neighbours(levels)) - static_cast<float>(kPairLimit));
  const vf less = nearest(excess * 0.5f + alternating(0.25f));  // rounded up in even places, down in odd ones
  return levels < 0.0f ? levels + less : levels - less;
}

inline float quantize_weights(const float* row, int64_t width, int8_t* values) {
  const auto at = [&](int64_t i) { return i + kLanes <= width ? load<vf>(row + i) : load_part(row + i, width - i); };
  vf top = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    const vf x = at(i);
    top = maximum(top, maximum(magnitude(x), magnitude(x + swap_neighbours(x)) * (127.0f / kPairLimit)));
  }
  const float peak = largest(top);
  float best_scale = 1.0f, best_error = __builtin_inff();
  // Clipping the largest weights a little, and pairs of them, makes the steps of all the others finer.
  for (int step = 0; step <= 20 && peak > 0; ++step) {
    const float scale = peak * (1.0f - 0.02f * static_cast<float>(step)) / 127.0f, inverse = 1.0f / scale;
    vf error = {};
    for (int64_t i = 0; i < width; i += kLanes) {
      const vf difference = quantized(at(i), inverse) * scale - at(i);
      error += difference * difference;
    }
    if (const float total = sum(error); total < best_error) {
      best_error = total;
      best_scale = scale;
    }
  }
  for (int64_t i = 0; i < width; i += kLanes) {
    float lane[kLanes];
    store(lane, quantized(at(i), 1.0f / best_scale));
    for (int64_t j = 0; j < kLanes && i + j < width; ++j) values[i + j] = static_cast<int8_t>(lane[j]);
  }
  return best_scale;
}

}  // namespace fusebert::FB_ISA
