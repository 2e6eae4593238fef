// A wave: some sequences of a batch on their way through all the blocks, with the buffers they need.
#pragma once
#include <chrono>
#include <map>
#include <vector>

#include "encoder.h"

namespace fusebert {

class Wave {
 public:
  // Sequences [first, last) of the run.
  Wave(const Encoder& encoder, const fb_run& run, const Pool::Turn& turn, int64_t first, int64_t last);
  void run();

 private:
  using Clock = std::chrono::steady_clock;

  Sequence sequence(int64_t number) const;
  Places places(int64_t begin, int64_t rows, const Sequence& sequence) const;
  void take_angles();
  void run_block(size_t place);
  void run_product(int step, size_t place, int32_t number, const Product& product, const Rows& rows,
                   const Product::Finish& finish);
  void attend_all(const AttentionShape& shape);
  void settle(size_t place, int64_t first, int64_t count);
  void note(int step, Clock::time_point start);

  int64_t stored(int64_t row) const;
  void copy_in() const;
  void copy_out(const float* rows, float* to) const;

  const Encoder& encoder_;
  const fb_run& run_;
  const Pool::Turn& turn_;
  Arena::Scope scope_;
  int64_t first_row_, rows_;
  float *x_, *sum_, *inner_, *context_;
  float* normed_ = nullptr;  // x through the norm that comes next, where there is one
  std::vector<Sequence> sequences_;
  std::map<const Position*, const float**> angles_;  // of every row, for each position that turns them
};

}  // namespace fusebert
