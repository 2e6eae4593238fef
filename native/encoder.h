// The encoder: packed blocks and the order they run in, over ragged rows, in waves that fit the cache.
#pragma once
#include <optional>
#include <vector>

#include "block.h"

namespace fusebert {

class Encoder {
 public:
  Encoder(const fb_encoder_spec& spec, const Pool::Turn& turn);
  int64_t bytes() const;
  void run(const fb_run& run) const;

  const Kernels& kernels() const { return kernels_; }
  int64_t hidden() const { return hidden_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  // How often a block is run, and which one at each place.
  size_t places() const { return order_.size(); }
  const Block& at(size_t place) const { return blocks_[order_[place]]; }
  // What the rows go through before the block at a place reads them, or, past the last, before they are the answer.
  const Norm* norm_before(size_t place) const;
  const Positions& positions() const { return positions_; }
  bool needs_places() const { return needs_places_; }  // of rows in their sequence

 private:
  void check(const fb_run& run) const;

  const Kernels& kernels_;
  const int64_t wave_rows_;
  int64_t hidden_;
  Arena store_;  // of all weights
  Positions positions_;
  bool needs_places_ = false;
  std::vector<Block> blocks_;
  std::vector<size_t> order_;
  std::optional<Norm> final_;
};

}  // namespace fusebert
