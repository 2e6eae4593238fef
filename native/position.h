// What attention knows of places: where the rows of a sequence stand, and what that adds to a tile of scores.
#pragma once
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"

namespace fusebert {

// Positions within a sequence, counted from its first visible row. All rise from one to the next.
struct Places {
  std::vector<int32_t> rows, keys;  // of all rows, and of those that may be attended to
  bool contiguous = true;           // no position is left out, neither among the rows nor among the keys
};

// A range of keys: from first to before last.
struct Keys {
  int64_t first, last;
  int64_t count() const { return last - first; }
};

// An fb_position, checked and packed.
struct Position {
  int32_t kind = FB_NO_POSITION;
  const float* source[2] = {};      // what it was made from, as long as blocks are being packed
  std::vector<float> numbers;       // rotary: frequencies; relative: [heads, 2 * reach + 1]
  int64_t reach = 0;                // distances beyond it are as it
  std::vector<int32_t> rows;        // disentangled: the row of a table for every distance, [2 * reach + 1]
  std::vector<uint8_t*> tables[2];  // of every head: what meets its queries, and what its keys, as packed weights
  int64_t count = 0;                // rows of a table
  bool near = false;                // from one distance to the next, the row is the same or the one beside it
};

// The positions of an encoder's blocks, each once, however many blocks have it.
class Positions {
 public:
  // For heads of `size` numbers, with scores that are products of `gemm`. Throws Invalid.
  const Position* take(const fb_position& given, int64_t heads, int64_t size, const Gemm& gemm, const std::string& name,
                       Arena& store);
  const std::deque<Position>& all() const { return all_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::deque<Position> all_;
  int64_t bytes_ = 0;
};

// What a table has for the distances between the rows and keys of a sequence.
template <class T>
class ByDistance {
 public:
  ByDistance(const T* table, int64_t reach, const Places& places, Arena& arena);
  // For one row and these keys; good until the next call.
  const T* at(int64_t row, Keys keys) const;

 private:
  T of(int64_t distance) const;

  const T* table_;
  int64_t reach_, least_;  // distance
  const Places& places_;
  T* spread_;  // by distance from the least one on, and some beyond; or, where positions are left out, room for one row
};

// What positions add to the scores of one head in one sequence.
class Terms {
 public:
  Terms(const Kernels& kernels, const Gemm& gemm, const Position& position, const Places& places, int64_t head,
        int64_t size, Arena& arena);
  // Before the scale: to scores of `count` rows from `first` on, which are given as inputs of a product. The keys are
  // given once, as rows of the head's numbers.
  void take_keys(const float* keys, int64_t stride);
  void add(const void* queries, int64_t first, int64_t count, Keys keys, float* scores, int64_t stride) const;
  // After it: the bias of these scores, with the one they have.
  void bias(int64_t first, Keys keys, Scores& scores) const;

 private:
  Keys columns(int64_t first_row, int64_t last_row, Keys keys) const;
  void multiply(const void* inputs, int64_t count, int table, Keys columns, float* out) const;

  const Kernels& kernels_;
  const Gemm& gemm_;
  const Position& position_;
  const Places& places_;
  int64_t head_, size_, width_;
  Arena& arena_;
  std::optional<ByDistance<float>> numbers_;
  std::optional<ByDistance<int32_t>> rows_;
  float *of_queries_ = nullptr, *of_keys_ = nullptr;  // [rows | keys, width]
};

}  // namespace fusebert
