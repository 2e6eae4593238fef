// Attention of a ragged batch: each sequence and head by itself, scores never leaving the cache.
#pragma once
#include <vector>

#include "kernels.h"
#include "position.h"
#include "threads.h"

namespace fusebert {

struct Sequence {
  int64_t first, rows;        // in the wave's buffers
  std::vector<int64_t> keys;  // the rows that may be attended to, counted from `first`
  bool uniform;               // no row is visible: attend to all of them equally
  const float* bias;          // of this sequence, or null
  Places places;              // empty where no block asks for them
};

struct AttentionShape {
  int64_t heads, key_heads, key_size, value_size;  // heads in groups of heads / key_heads share keys and values
  float scale;
  bool bf16;
  int32_t bytes;             // FB_NEVER, FB_WHERE_IT_PAYS or FB_ALWAYS
  int64_t window;            // the farthest that a query sees, in positions; 0: everything
  const Position* position;  // or null
  int64_t bias_stride[4];

  int64_t queries_and_keys() const { return (heads + key_heads) * key_size; }  // numbers of a row, before its values
  int64_t row() const { return queries_and_keys() + key_heads * value_size; }
};

// queries, keys and values lie side by side in rows of qkv; context is [rows, heads * value_size].
void attend(const Kernels& kernels, const AttentionShape& shape, const std::vector<Sequence>& sequences,
            const float* qkv, float* context, const Pool::Turn& turn);

}  // namespace fusebert
