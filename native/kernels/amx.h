// Products of bytes and of bf16 on AMX: 32 rows x 2 vectors of columns are summed in four tiles, 16 groups of inputs at
// a time. Weights lie as they do for vectors: 16 groups of one vector of columns are a tile. Rows lie one after the
// other, so that 16 groups of 16 rows are one as well. Groups that do not fill a tile are added by vectors.
#pragma once
#include "products.h"

namespace fusebert::FB_ISA {

constexpr int kTileGroups = 16, kTileHeight = 16;

// What is told to the machine about its tiles before it uses them.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// One thread's tiles during one call of `multiply`: sums in 0 (upper left) to 3, inputs in 4 and 5, weights in 6 and 7.
template <class P>
  requires P::kRowByRow
class Tiles<P> {
 public:
  Tiles() = default;
  Tiles(const Tiles&) = delete;
  ~Tiles() {
    if (height_) _tile_release();
  }

  void add(const void* inputs, int64_t row_bytes, const void* panel, int64_t groups, bool first, int height,
           int vectors, typename P::Sum* sums, const char* ahead, int64_t step) {
    const int64_t steps = groups / kTileGroups, done = steps * kTileGroups;
    if (steps == 0 && first)
      for (int i = 0; i < height * vectors; ++i) sums[i] = typename P::Sum{};
    if (steps > 0) {
      shape(height, vectors);
      const auto sum = height > kTileHeight ? (vectors > 1 ? &run<true, true> : &run<true, false>)
                                            : (vectors > 1 ? &run<false, true> : &run<false, false>);
      sum(static_cast<const char*>(inputs), row_bytes, static_cast<const char*>(panel), steps, first, sums, ahead,
          step * (kTileGroups / kStride));
    }
    add_rest(static_cast<const typename P::Stored*>(inputs) + done * P::kGroup,
             row_bytes / static_cast<int64_t>(sizeof(typename P::Stored)),
             static_cast<const typename P::Weight*>(panel) + done * vectors * kLanes * P::kGroup, groups - done, height,
             vectors, sums);
  }

 private:
  // Compilers do not see all of what instructions on tiles read: it has to be in memory by now.
  static void settle() { __asm__ volatile("" : : : "memory"); }

  void shape(int height, int vectors) {
    if (height == height_ && vectors == vectors_) return;
    height_ = height, vectors_ = vectors;
    TileShapes shapes;
    const int upper = height < kTileHeight ? height : kTileHeight;
    for (const int half : {0, 1}) {
      const int rows = half ? height - upper : upper;
      for (const int tile : {2 * half, 2 * half + 1, 4 + half}) {
        if (rows == 0 || (tile < 4 && tile % 2 >= vectors)) continue;
        shapes.rows[tile] = static_cast<uint8_t>(rows);
        shapes.row_bytes[tile] = kLine;
      }
      if (half < vectors) shapes.rows[6 + half] = kTileGroups, shapes.row_bytes[6 + half] = kLine;
    }
    settle();
    _tile_loadconfig(&shapes);
  }

// A tile's number has to be written out.
#define FB_MULTIPLY_TILES(sums, inputs, weights) \
  if constexpr (P::kGroup == 4)                  \
    _tile_dpbusd(sums, inputs, weights);         \
  else                                           \
    _tile_dpbf16ps(sums, inputs, weights)
  template <bool Lower, bool Right>
  static void run(const char* x, int64_t row_bytes, const char* w, int64_t steps, bool first, void* sums,
                  const char* ahead, int64_t step) {
    constexpr int64_t kWidth = (Right ? 2 : 1) * kLine, kHalf = kTileHeight * kWidth;
    char* const to = static_cast<char*>(sums);
    settle();
    if (first) {
      _tile_zero(0);
      if constexpr (Right) _tile_zero(1);
      if constexpr (Lower) _tile_zero(2);
      if constexpr (Lower && Right) _tile_zero(3);
    } else {
      _tile_loadd(0, to, kWidth);
      if constexpr (Right) _tile_loadd(1, to + kLine, kWidth);
      if constexpr (Lower) _tile_loadd(2, to + kHalf, kWidth);
      if constexpr (Lower && Right) _tile_loadd(3, to + kHalf + kLine, kWidth);
    }
    for (int64_t k = 0; k < steps; ++k, x += kLine, w += kTileGroups * kWidth, ahead += step) {
      for (int64_t line = 0; line < step; line += kLine) __builtin_prefetch(ahead + line, 0, 2);
      _tile_loadd(6, w, kWidth);
      _tile_loadd(4, x, row_bytes);
      FB_MULTIPLY_TILES(0, 4, 6);
      if constexpr (Lower) {
        _tile_loadd(5, x + kTileHeight * row_bytes, row_bytes);
        FB_MULTIPLY_TILES(2, 5, 6);
      }
      if constexpr (Right) {
        _tile_loadd(7, w + kLine, kWidth);
        FB_MULTIPLY_TILES(1, 4, 7);
      }
      if constexpr (Lower && Right) {
        FB_MULTIPLY_TILES(3, 5, 7);
      }
    }
    _tile_stored(0, to, kWidth);
    if constexpr (Right) _tile_stored(1, to + kLine, kWidth);
    if constexpr (Lower) _tile_stored(2, to + kHalf, kWidth);
    if constexpr (Lower && Right) _tile_stored(3, to + kHalf + kLine, kWidth);
  }
#undef FB_MULTIPLY_TILES

  static void add_rest(const typename P::Stored* x, int64_t stride, const typename P::Weight* w, int64_t groups,
                       int height, int vectors, typename P::Sum* sums) {
    for (int r = 0; r < height && groups > 0; ++r)
      for (int v = 0; v < vectors; ++v) {
        typename P::Sum sum = sums[r * vectors + v];
        for (int64_t g = 0; g < groups; ++g)
          sum = P::add(sum, P::input(x + r * stride + g * P::kGroup),
                       P::weight(w + (g * vectors + v) * kLanes * P::kGroup));
        sums[r * vectors + v] = sum;
      }
  }

  int height_ = 0, vectors_ = 0;
};

}  // namespace fusebert::FB_ISA
