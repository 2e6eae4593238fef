// How a batch is cut into waves, and a product into tasks for threads: numbers in, numbers out.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels.h"

namespace fusebert {

// Of the rows that are left, how many go through all layers together. Two whole blocks for each thread are enough to
// share out, and their buffers leave most of the last-level cache to the weights that pass by; what is left is not much
// less than a wave.
inline int64_t wave_rows(int64_t left, int64_t threads) {
  constexpr int64_t kFewest = 4 * kBlockRows, kOfThread = 2 * kBlockRows;
  const int64_t most = std::max(kFewest, kOfThread * threads);
  return 2 * left <= 3 * most ? left : most;
}

// Where rows are many, each thread takes whole blocks (`own`), whose strips of columns others help with at the end.
// Where they are few, all threads share the strips of some blocks, of which so many are under way at once, each
// prepared and finished in shares.
struct Cut {
  bool own;
  int64_t blocks, strips, shares, places;
  int64_t later() const { return std::max<int64_t>(1, places - 1); }  // how many blocks on, one is finished
};

inline Cut cut(int64_t rows, int64_t tile_rows, int64_t panels, int64_t threads) {
  constexpr int64_t kStrips = 8;    // for each thread, so that one which is slowed down takes fewer
  constexpr int64_t kOwnRows = 64;  // for each thread, from which on it pays that each reads all weights
  constexpr int64_t kTasks = 2;     // for each thread, at least, if the product is large enough
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows, most = kBlockRows / tile_rows;
  const int64_t fewest = (tiles + most - 1) / most;  // blocks
  if (threads == 1 || rows >= kOwnRows * threads)
    return {true, round_up(fewest, threads), threads == 1 ? 1 : std::min(panels, kStrips), 1, 0};
  const int64_t strips = std::min(panels, kStrips * threads), wanted = (kTasks * threads + strips - 1) / strips;
  const int64_t blocks = std::max(fewest, std::min(tiles, wanted));
  return {false, blocks, strips, std::clamp<int64_t>(tiles / blocks, 1, threads), std::min(blocks, wanted + 1)};
}

}  // namespace fusebert
