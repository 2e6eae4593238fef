// Attention of one head in bytes: a tile of rows at a time, and a block of keys after the other, of which nothing is
// kept but the context and the sum of the weights.
//
// Queries and keys are bytes with a scale for each row of them. What softmax makes of the scores of a block are 255
// levels of the largest of that block; values have a scale for each column of a block. Sums of products are whole
// numbers, and blocks begin at the same keys on every instruction set.
#pragma once
#include "packing.h"

namespace fusebert::FB_ISA {

#if defined(FB_MADD)
// S8 adds four products in 16 bits, which suits weights that keep kSumLimit. Keys and values do not.
struct Bytes : S8 {
  typedef int16_t Halves __attribute__((vector_size(4 * kLanes)));
  typedef uint16_t Levels __attribute__((vector_size(4 * kLanes)));
  static constexpr int kJoined = 1;
  FB_INLINE vi add(vi sum, vi x, vi w) {
    const vi even = add_pairs(sum, (vi)((Levels)x & 255), (vi)((Halves)w << 8 >> 8));
    return add_pairs(even, (vi)((Levels)x >> 8), (vi)((Halves)w >> 8));
  }
};
#elif defined(FB_AMX)
struct Bytes : S8 {  // a block of keys is too small for tiles: by vectors, rows interleaved
  static constexpr bool kRowByRow = false;
  static constexpr int kRows = kTileRows, kVectors = kTileVectors, kJoined = 1;
};
#elif defined(FB_DOT)
struct Bytes : S8 {
  static constexpr int kRows = kLanes;
#ifndef FB_I8MM  // what S8 leaves to Columns is done at once: nobody else knows the sums of keys and values
  FB_INLINE vi input(const uint8_t* x) { return vi{} + load<int32_t>(x); }
  FB_INLINE vi add(vi sum, vi x, vi w) {
    const vi middle = vi{} + static_cast<int32_t>(0x80808080);
    return S8::add(sum, x ^ middle, w) - S8::add(vi{}, middle, w);
  }
#endif
};
#else
using Bytes = S8;
#endif

// From how many keys on it is quicker than attention in fp32, and than attention in bf16, as measured (docs/speed.md).
#ifndef FB_VNNI
constexpr int64_t kFewestKeys[] = {INT64_MAX, INT64_MAX};
#elif defined(FB_DPBF16)
constexpr int64_t kFewestKeys[] = {48, 96};
#else
constexpr int64_t kFewestKeys[] = {48, 48};
#endif
constexpr int64_t kBlockKeys = 192;    // the same on every instruction set
constexpr int64_t kWidestHead = 256;   // numbers of a key or a value
constexpr int64_t kStep = 4 * kLanes;  // numbers that become bytes together
constexpr int kRows = Bytes::kRows, kMiddle = 128;
constexpr float kUnseen = -3e38f;                           // no score is less
constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;  // scores are powers of two
static_assert(kBlockKeys % kPanel<Bytes> == 0 && kBlockKeys % kStep == 0 && kRows <= kLanes);

FB_INLINE vi ones() { return vi{} + 0x01010101; }
FB_INLINE vi lanes() {
  vi v = {};
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

// A block of keys and their values, packed as weights.
struct KeyBlock {
  int64_t count;
  int8_t *keys, *values;
  float *scale, *offset;  // score = scale * sum + offset, for each key
  float* value_scale;     // for each column
};

// The blocks of a head, one after the other in memory.
class KeyBlocks {
 public:
  explicit KeyBlocks(const ByteHead& head, void* room = nullptr) : head_(head), room_(static_cast<uint8_t*>(room)) {}
  int64_t count() const { return (head_.keys + kBlockKeys - 1) / kBlockKeys; }
  int64_t bytes() const { return count() * (keys_bytes() + values_bytes() + 4 * (2 * kBlockKeys + columns())); }
  int64_t key_groups() const { return (head_.key_size + 3) / 4; }
  int64_t columns() const { return round_up(head_.value_size, kLanes); }
  KeyBlock at(int64_t number) const {
    uint8_t* place = room_ + number * (bytes() / count());
    const auto take = [&](int64_t bytes) { return (place += bytes) - bytes; };
    const int64_t left = head_.keys - number * kBlockKeys;
    KeyBlock block{left < kBlockKeys ? left : kBlockKeys, nullptr, nullptr, nullptr, nullptr, nullptr};
    block.keys = reinterpret_cast<int8_t*>(take(keys_bytes()));
    block.values = reinterpret_cast<int8_t*>(take(values_bytes()));
    block.scale = reinterpret_cast<float*>(take(4 * kBlockKeys));
    block.offset = reinterpret_cast<float*>(take(4 * kBlockKeys));
    block.value_scale = reinterpret_cast<float*>(take(4 * columns()));
    return block;
  }

 private:
  int64_t keys_bytes() const { return kBlockKeys * 4 * key_groups(); }
  int64_t values_bytes() const { return kBlockKeys * columns(); }

  const ByteHead& head_;
  uint8_t* room_;
};

// Numbers as levels around kMiddle, up to 127 of them on either side; returns the scale, a NaN if one is not finite.
// Whole steps are written.
FB_INLINE float to_middle_levels(const float* x, int64_t width, uint8_t* to) {
  vf most = {}, broken = {};
  each_four(x, nullptr, 0, width, [&](const vf* four) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) most = maximum(most, magnitude(four[j])), broken += four[j] * 0.0f;
  });
  const float top = largest(most), scale = top > 1e-30f ? top / 127.0f : 1.0f, inverse = 1.0f / scale;
  each_four(x, nullptr, 0, width, [&](const vf* four) {
    vf levels[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) levels[j] = four[j] * inverse + static_cast<float>(kMiddle);
    store(to, to_levels(levels));
    to += kStep;
  });
  return any(broken != 0.0f) ? __builtin_nanf("") : scale;
}

FB_INLINE void pack_block_keys(const ByteHead& head, const float* keys, int64_t stride, const int64_t* index,
                               int64_t groups, const KeyBlock& block) {
  alignas(64) uint8_t levels[kLanes][kWidestHead];
  for (int64_t first = 0; first < kBlockKeys; first += kLanes) {
    float* const scale = block.scale + first;
    if (first >= block.count) {  // seen by nobody
      store(scale, vf{}), store(block.offset + first, splat(-__builtin_inff()));
      continue;
    }
    const int64_t here = block.count - first < kLanes ? block.count - first : kLanes;
    for (int64_t i = 0; i < kLanes; ++i) scale[i] = 0;
    for (int64_t i = 0; i < here; ++i)
      scale[i] = head.scale * kLog2e * to_middle_levels(keys + index[first + i] * stride, head.key_size, levels[i]);
    const int64_t before = first / kPanel<Bytes> * kPanel<Bytes>, left = round_up(block.count, kLanes) - before;
    const int64_t width = left < kPanel<Bytes> ? left : kPanel<Bytes>;
    int8_t* const panel = block.keys + (before * groups + first - before) * 4;
    vi sums = {};
    for (int64_t g = 0; g < groups; g += kLanes) {
      vi zipped[kLanes] = {};
      for (int64_t i = 0; i < here; ++i) zipped[i] = load<vi>(levels[i] + g * 4) ^ static_cast<int32_t>(0x80808080);
      zip_rows<kLanes>(zipped);
      for (int64_t i = 0; i < kLanes && g + i < groups; ++i) {
        store(panel + (g + i) * width * 4, zipped[i]);
        sums = Bytes::add(sums, ones(), zipped[i]);
      }
    }
    store(block.offset + first, __builtin_convertvector(sums, vf) * load<vf>(scale) * static_cast<float>(-kMiddle));
    for (int64_t i = here; i < kLanes; ++i) block.offset[first + i] = -__builtin_inff();
  }
}

FB_INLINE void pack_block_values(const ByteHead& head, const float* values, int64_t stride, const int64_t* index,
                                 const KeyBlock& block) {
  const int64_t padded = round_up(block.count, 4);
  for (int64_t column = 0; column < head.value_size; column += kLanes) {
    const int64_t left = head.value_size - column;
    const auto value = [&](int64_t key) {
      const float* at = values + index[key] * stride + column;
      return left >= kLanes ? load<vf>(at) : load_part(at, left);
    };
    vf most = {}, broken = {};
    for (int64_t key = 0; key < block.count; ++key)
      most = maximum(most, magnitude(value(key))), broken += value(key) * 0.0f;
    const vf scale = most > 1e-30f ? most / 127.0f : splat(1), inverse = 1.0f / scale;
    store(block.value_scale + column, scale + broken);
    const int64_t before = column / kPanel<Bytes> * kPanel<Bytes>, rest = round_up(head.value_size, kLanes) - before;
    const int64_t width = rest < kPanel<Bytes> ? rest : kPanel<Bytes>;
    int8_t* const panel = block.values + before * padded + (column - before) * 4;
    for (int64_t key = 0; key < padded; key += 4) {
      vu four = {};
      for (int64_t i = 0; i < 4 && key + i < block.count; ++i)
        four |= ((vu)(value(key + i) * inverse + kNearest) & 255u) << static_cast<uint32_t>(8 * i);
      store(panel + key * width, four);
    }
  }
}

inline bool pack_head(const ByteHead& head, const float* keys, const float* values, int64_t stride,
                      const int64_t* index, void* room) {
  const KeyBlocks blocks(head, room);
  vf broken = {};
  for (int64_t b = 0; b < blocks.count(); ++b) {
    const KeyBlock block = blocks.at(b);
    pack_block_keys(head, keys, stride, index + b * kBlockKeys, blocks.key_groups(), block);
    pack_block_values(head, values, stride, index + b * kBlockKeys, block);
    for (int64_t key = 0; key < kBlockKeys; key += kLanes) broken += load<vf>(block.scale + key) * 0.0f;
    for (int64_t i = 0; i < blocks.columns(); i += kLanes) broken += load<vf>(block.value_scale + i) * 0.0f;
  }
  return !any(broken != 0.0f);
}

// Added to levels before they are rounded, by the key's place in its block. Rounded to the nearest, many small weights
// beside a large one would be nothing, all of them; so as many of them become 1 as make up their sum.
struct Dither {
  constexpr Dither() {
    float at = 0;
    for (float& value : values) {
      value = at - 0.5f;
      at += 0.618034f;
      at -= at >= 1.0f ? 1.0f : 0.0f;
    }
  }
  alignas(64) float values[kBlockKeys] = {};
};
constexpr Dither kDither;

// 255 times 2^x, for x up to 0; relative error below 1e-4.
FB_INLINE vf power_levels(vf x) {
  const auto polynomial = [](vf r) {  // of what is above a whole number
    vf p = splat(0.0770670423f * 255);
    p = p * r + 0.227644991f * 255;
    p = p * r + 0.695116787f * 255;
    return p * r + 255.0f;
  };
#if FB_LANES == 16
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  return (vf)_mm512_maskz_scalef_ps(0xffff, (__m512)polynomial((vf)_mm512_maskz_reduce_ps(0xffff, (__m512)x, kDown)),
                                    (__m512)x);
#else
  const vf above = maximum(splat(-100.0f), x), shifted = above - 0.5f + kNearest;
  return (vf)((vu)polynomial(above - (shifted - kNearest)) + ((vu)shifted << 23));
#endif
}

// A tile of rows on its way through the blocks.
class RowTile {
 public:
  RowTile(const ByteHead& head, const ByteRows& rows, int64_t first)
      : head_(head), rows_(rows), first_(first), height_(rows.count - first < kRows ? rows.count - first : kRows) {
    alignas(64) uint8_t levels[kRows][kWidestHead];
    const int64_t groups = (head.key_size + 3) / 4;
    for (int64_t r = 0; r < kRows; ++r)
      factor_[r] =
          r < height_ ? to_middle_levels(rows.queries + (first + r) * rows.stride, head.key_size, levels[r]) : 1.0f;
    interleave<kRows>(reinterpret_cast<const int32_t*>(levels), kWidestHead / 4, kRows, round_up(groups, kLanes),
                      reinterpret_cast<int32_t*>(queries_));
    for (int64_t i = kRows; i < kLanes; ++i) factor_[i] = 1.0f;
    store(peak_, splat(kUnseen)), store(total_, vf{});
    for (int64_t i = 0; i < kRows * round_up(head.value_size, kLanes); i += kLanes) store(context_ + i, vf{});
  }

  // Takes a block in, whose first key has that number.
  void meet(const KeyBlock& block, int64_t number) {
    if (rows_.bias || rows_.seen)
      score<true>(block, number);
    else
      score<false>(block, number);
    soften(block);
    weigh(block);
  }

  void write() const {
    const int64_t columns = round_up(head_.value_size, kLanes);
    for (int64_t r = 0; r < height_; ++r) {
      const float share = total_[r] > 0 ? 1.0f / total_[r] : total_[r];  // a NaN stays
      float* const out = rows_.out + (first_ + r) * rows_.out_stride;
      for (int64_t column = 0; column < head_.value_size; column += kLanes) {
        const vf value = load<vf>(context_ + r * columns + column) * share;
        const int64_t left = head_.value_size - column;
        left >= kLanes ? store(out + column, value) : store_part(out + column, value, left);
      }
    }
  }

 private:
  // Scores of a panel of keys, as powers of two, and each row's largest.
  template <bool Special>
  void score(const KeyBlock& block, int64_t number) {
    constexpr int kVectors = Bytes::kVectors;
    const int64_t groups = (head_.key_size + 3) / 4, padded = round_up(block.count, kLanes);
    vf tops[kRows];
    for (int r = 0; r < kRows; ++r) tops[r] = splat(-__builtin_inff());
    for (int64_t key = 0; key < padded; key += kPanel<Bytes>) {
      alignas(64) vi sums[kRows * kVectors];
      const int vectors = padded - key < kPanel<Bytes> ? static_cast<int>((padded - key) / kLanes) : kVectors;
      const int8_t* panel = block.keys + key * groups * 4;
      kTiles<Bytes>[kRows - 1][vectors - 1](queries_, panel, groups, true, sums, nullptr, 0);
      for (int v = 0; v < vectors; ++v) {
        const vf scale = load<vf>(block.scale + key + v * kLanes), offset = load<vf>(block.offset + key + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          vf x = __builtin_convertvector(sums[r * vectors + v], vf) * scale + offset;
          if constexpr (Special) x = special(x, r, number + key + v * kLanes);
          store(scores_ + r * kBlockKeys + key + v * kLanes, x);
          tops[r] = maximum(tops[r], x);
        }
      }
    }
    for (int64_t key = padded; key < round_up(padded, kStep); key += kLanes)
      for (int r = 0; r < kRows; ++r) store(scores_ + r * kBlockKeys + key, splat(-__builtin_inff()));
    for (int r = 0; r < kRows; ++r) top_[r] = largest(tops[r]);
  }

  // With what places add, and without what the row does not see.
  vf special(vf x, int r, int64_t key) const {
    if (r >= height_) return x;
    if (rows_.bias) {
      const float* bias = rows_.bias + (first_ + r) * rows_.bias_row_stride + key;
      const int64_t left = head_.keys - key;
      x = x * factor_[r] + (left >= kLanes ? load<vf>(bias) : load_part(bias, left)) * kLog2e;
    }
    if (!rows_.seen) return x;
    const int64_t* seen = rows_.seen + 2 * (first_ + r);
    const vi at = lanes() + static_cast<int32_t>(key);
    const vi hidden = (at < static_cast<int32_t>(seen[0])) | (at >= static_cast<int32_t>(seen[1]));
    return hidden ? splat(-__builtin_inff()) : x;
  }

  // Scores -> levels, and what they are worth beside those of the blocks before.
  void soften(const KeyBlock& block) {
    alignas(64) uint8_t levels[kRows][kBlockKeys];
    const vf factor = rows_.bias ? splat(1) : load<vf>(factor_);
    const vf own = maximum(load<vf>(top_) * factor, splat(kUnseen)), before = load<vf>(peak_);
    const vf peak = maximum(before, own);
    alignas(64) float own_of[kLanes], factor_of[kLanes];
    store(own_of, own), store(factor_of, factor), store(peak_, peak);
    const int64_t steps = (block.count + kStep - 1) / kStep;
    alignas(64) float counted[kLanes] = {};
    for (int r = 0; r < kRows; ++r) {
      const float* x = scores_ + r * kBlockKeys;
      const vf by = splat(factor_of[r]), top = splat(own_of[r]);
      vi count = {};
      for (int64_t s = 0; s < steps; ++s) {
        vf powers[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const int64_t key = s * kStep + j * kLanes;
          powers[j] = power_levels(load<vf>(x + key) * by - top) + load<vf>(kDither.values + key);
        }
        const vi four = to_levels(powers);
        store(levels[r] + s * kStep, four);
        count = Bytes::add(count, four, ones());
      }
      counted[r] =
          static_cast<float>(joined(count, [](vi a, vi b) { return a + b; })) + factor_[r] * 0.0f;  // a NaN stays
    }
    interleave<kRows>(reinterpret_cast<const int32_t*>(levels), kBlockKeys / 4, kRows, steps * kLanes,
                      reinterpret_cast<int32_t*>(weights_));
    const vf kept = exponential((before - peak) * kLn2), share = exponential((own - peak) * kLn2);
    store(kept_, kept), store(share_, share);
    store(total_, load<vf>(total_) * kept + load<vf>(counted) * share);
  }

  void weigh(const KeyBlock& block) {
    const int64_t columns = round_up(head_.value_size, kLanes), padded = round_up(block.count, 4);
    for (int64_t column = 0; column < columns; column += kPanel<Bytes>) {
      alignas(64) vi sums[kRows * Bytes::kVectors];
      const int vectors =
          columns - column < kPanel<Bytes> ? static_cast<int>((columns - column) / kLanes) : Bytes::kVectors;
      kTiles<Bytes>[kRows - 1][vectors - 1](weights_, block.values + column* padded, padded / 4, true, sums, nullptr,
                                            0);
      for (int v = 0; v < vectors; ++v) {
        const vf scale = load<vf>(block.value_scale + column + v * kLanes);
        float* context = context_ + column + v * kLanes;
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r, context += columns)
          store(context, load<vf>(context) * kept_[r] +
                             __builtin_convertvector(sums[r * vectors + v], vf) * (scale * share_[r]));
      }
    }
  }

  const ByteHead& head_;
  const ByteRows& rows_;
  const int64_t first_, height_;
  alignas(64) uint8_t queries_[kRows * kWidestHead], weights_[kRows * kBlockKeys];
  alignas(64) float scores_[kRows * kBlockKeys], context_[kRows * kWidestHead];
  // For each row: its scale; the largest score so far, and of this block; the sum of the weights; what the context so
  // far, and what that of this block, is multiplied with.
  alignas(64) float factor_[kLanes], peak_[kLanes], top_[kLanes] = {}, total_[kLanes], kept_[kLanes], share_[kLanes];
};

inline void attend_rows(const ByteHead& head, const void* room, const ByteRows& rows) {
  const KeyBlocks blocks(head, const_cast<void*>(room));
  const int64_t begin = rows.first / kBlockKeys, end = (rows.last + kBlockKeys - 1) / kBlockKeys;
  for (int64_t row = 0; row < rows.count; row += kRows) {
    RowTile tile(head, rows, row);
    for (int64_t b = begin; b < end; ++b) tile.meet(blocks.at(b), b * kBlockKeys);
    tile.write();
  }
}

inline int64_t head_room(const ByteHead& head) {
  const bool fits = head.key_size <= kWidestHead && head.value_size <= kWidestHead;
  return fits ? KeyBlocks(head).bytes() : 0;
}

}  // namespace fusebert::FB_ISA
