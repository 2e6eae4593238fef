// Tiles (AMX) in plain C++, after the formulas of Intel's manual: compiled in the place of the intrinsics by
// FUSEBERT_EMULATE_TILES, so that the table is tested, under sanitizers too, on machines that have AVX-512 but no
// tiles.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace tiles {

struct Config {
  uint8_t palette, start, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
struct Tile {
  alignas(64) uint8_t row[16][64];
};
inline thread_local Config config;
inline thread_local Tile tile[8];

// What the machine would stop the process for.
inline void demand(bool holds) {
  if (!holds) std::abort();
}
inline void demand_shaped(int t) { demand(config.palette == 1 && config.rows[t] > 0 && config.row_bytes[t] > 0); }

inline void configure(const void* from) {
  std::memcpy(&config, from, sizeof config);
  demand(config.palette == 1 && config.start == 0);
  for (int t = 0; t < 16; ++t)
    demand(config.rows[t] <= (t < 8 ? 16 : 0) && config.row_bytes[t] <= (t < 8 ? 64 : 0) &&
           !config.rows[t] == !config.row_bytes[t]);
  for (const uint8_t r : config.reserved) demand(r == 0);
  std::memset(tile, 0, sizeof tile);
}
inline void release() { config = {}; }
inline void zero(int t) {
  demand_shaped(t);
  std::memset(&tile[t], 0, sizeof tile[t]);
}
inline void load(int t, const void* from, int64_t stride) {
  zero(t);
  for (int r = 0; r < config.rows[t]; ++r)
    std::memcpy(tile[t].row[r], static_cast<const char*>(from) + r * stride, config.row_bytes[t]);
}
inline void keep(int t, void* to, int64_t stride) {
  demand_shaped(t);
  for (int r = 0; r < config.rows[t]; ++r)
    std::memcpy(static_cast<char*>(to) + r * stride, tile[t].row[r], config.row_bytes[t]);
}

// Calls f(m, n) for every sum of tile s, if the three fit each other.
template <class F>
void each_sum(int s, int x, int w, const F& f) {
  for (const int t : {s, x, w}) demand_shaped(t);
  demand(config.rows[s] == config.rows[x] && config.row_bytes[s] == config.row_bytes[w] &&
         config.rows[w] == config.row_bytes[x] / 4);
  for (int m = 0; m < config.rows[s]; ++m)
    for (int n = 0; n < config.row_bytes[s] / 4; ++n) f(m, n);
}

inline void multiply_bytes(int s, int x, int w) {
  each_sum(s, x, w, [&](int m, int n) {
    uint32_t sum;
    std::memcpy(&sum, &tile[s].row[m][4 * n], 4);
    for (int k = 0; k < config.rows[w]; ++k)
      for (int i = 0; i < 4; ++i)
        sum += static_cast<uint32_t>(tile[x].row[m][4 * k + i] * static_cast<int8_t>(tile[w].row[k][4 * n + i]));
    std::memcpy(&tile[s].row[m][4 * n], &sum, 4);
  });
}

inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
inline float half_at(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return flushed(value);
}
inline void multiply_halves(int s, int x, int w) {
  each_sum(s, x, w, [&](int m, int n) {
    float sum, part[2] = {};
    std::memcpy(&sum, &tile[s].row[m][4 * n], 4);
    for (int k = 0; k < config.rows[w]; ++k)
      for (int i = 0; i < 2; ++i)
        part[i] = flushed(
            std::fma(half_at(&tile[x].row[m][4 * k + 2 * i]), half_at(&tile[w].row[k][4 * n + 2 * i]), part[i]));
    sum = flushed(flushed(sum) + flushed(part[0] + part[1]));
    std::memcpy(&tile[s].row[m][4 * n], &sum, 4);
  });
}

}  // namespace tiles

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig tiles::configure
#define _tile_release tiles::release
#define _tile_loadd tiles::load
#define _tile_stored tiles::keep
#define _tile_zero tiles::zero
#define _tile_dpbusd tiles::multiply_bytes
#define _tile_dpbf16ps tiles::multiply_halves
