// What an instruction set provides: one table of functions per ISA, all made from the sources in kernels/.
//
// Packed weights and prepared input rows have a geometry of their own per ISA and precision; only the functions of one
// table may be mixed. Nothing here allocates or knows threads.
#pragma once
#include <cstdint>

#include "fusebert.h"

namespace fusebert {

constexpr int64_t kBlockRows = 96;  // that a product takes at a time

// Input rows in the form a product reads: tiles of rows, interleaved.
struct InputRows {
  const void* data;
  const float* scale;   // value = scale[row] * (data - zero[row]); may be null, as a scale of 1
  const int32_t* zero;  // int8 only: a pair, see levels.h
};

// Weights in panels of `Gemm::panel` columns; a panel holds groups of `Gemm::group` inputs for each of its columns in
// turn. The last panel is as narrow as whole vectors allow. Arrays per column are padded to whole vectors.
struct PackedWeights {
  const void* data;
  int64_t inputs, outputs;
  const float* scale;     // int8 only, per column
  const int32_t* origin;  // int8 only: the sum of the column's weights, negative, as a pair
};

// What happens to a finished tile while it is in registers: out = activation(product + bias) + residual.
struct Epilogue {
  float* out;
  int64_t out_stride;
  const float* bias = nullptr;  // padded to whole vectors
  int32_t activation = FB_IDENTITY;
  const float* residual = nullptr;
  int64_t residual_stride = 0;
};

// A fixed input range (low < high), or low = high: a range per row.
struct Range {
  float low, high;
};

// Scores of at most kBlockRows rows, in rows of whole vectors.
struct Scores {
  float* data;
  int64_t stride, count, keys;
  float scale;
  const float* bias = nullptr;  // added to the scaled scores
  int64_t bias_row_stride = 0, bias_key_stride = 0;
  const int64_t* seen = nullptr;  // [count, 2] keys that a row sees, from the first to before the second; null: all
};

// The products of one precision on one ISA.
struct Gemm {
  int group, panel, vector, tile_rows;
  int input_bytes, weight_bytes;
  // Rows of floats -> the form that multiply reads; `data` has room for rows * padded(inputs) elements. `factors`,
  // which int8 rows are multiplied with column by column, may be null.
  void (*prepare)(const float* rows, int64_t stride, int64_t count, int64_t inputs, const float* factors, Range range,
                  void* data, float* scale, int32_t* zero);
  // Scores, worked on in place -> softmax(scores * scale + bias) in that form, but for a factor `share` per row. A row
  // whose bias hides every key becomes uniform; one that has no keys to see becomes zeros.
  void (*soften)(const Scores& scores, void* data, float* share);
  // At most kBlockRows rows x panels [first, last) of the weights, through the epilogue.
  void (*multiply)(const InputRows& rows, int64_t count, const PackedWeights& weights, int64_t first, int64_t last,
                   const Epilogue& epilogue);
  // Packs, as weights, the transpose of (keys) or directly (values) the listed rows of a float matrix.
  void (*pack_keys)(const float* rows, int64_t stride, const int64_t* index, int64_t count, int64_t width,
                    void* packed);
  void (*pack_values)(const float* rows, int64_t stride, const int64_t* index, int64_t count, int64_t width,
                      void* packed);
};

// One head of a sequence; its scores are scale * query * key.
struct ByteHead {
  int64_t keys, key_size, value_size;
  float scale;
};

// Some rows that attend to the keys from `first` to before `last`, or each to those that it sees.
struct ByteRows {
  const float* queries;
  int64_t stride, count, first, last;
  const int64_t* seen = nullptr;  // [count, 2], as in Scores
  const float* bias = nullptr;    // [count, keys of the head], added to the scaled scores; finite
  int64_t bias_row_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// Attention in products of bytes, from rows of floats to rows of floats.
struct ByteAttention {
  int64_t fewest_keys[2];  // from which on it is quicker than attention in fp32, and in bf16
  // Bytes that a head needs when packed; 0: it is too wide.
  int64_t (*room)(const ByteHead& head);
  // Packs the listed rows of keys and values; false if one of their numbers is not finite.
  bool (*pack)(const ByteHead& head, const float* keys, const float* values, int64_t stride, const int64_t* index,
               void* room);
  void (*attend)(const ByteHead& head, const void* room, const ByteRows& rows);
};

// What positions add to scores of rows and keys that stand side by side: to that of a row and a key,
// of_queries[row * width + n] and of_keys[key * width + n], where n is index[key - row], which falls by at most 1 from
// one distance to the next. Either may be null. Terms have room for kMostLanes more, indices on both sides.
struct NearTerms {
  const float *of_queries, *of_keys;
  int64_t width;
  const int32_t* index;
};
constexpr int64_t kMostLanes = 16;

struct Kernels {
  const char* name;
  Gemm f32, bf16, s8;
  ByteAttention bytes;
  // out = norm(in), by kind; gain and bias may be null; in and out may be the same.
  void (*norm[2])(const float* in, int64_t in_stride, float* out, int64_t out_stride, int64_t rows, int64_t width,
                  const fb_norm& norm);
  // Turns every head of a row: numbers half a head apart, as pairs, by angles (half a head of cosines, then of sines).
  void (*rotate)(float* row, int64_t heads, int64_t size, const float* angles);
  // up = activation(gate) * up
  void (*gate)(int32_t activation, const float* gate, float* up, int64_t width);
  // scores[i] += terms[i * stride + index[i]]
  void (*add_terms)(float* scores, int64_t count, const float* terms, int64_t stride, const int32_t* index);
  // Scores are in rows of whole vectors.
  void (*add_near_terms)(float* scores, int64_t stride, int64_t rows, int64_t keys, const NearTerms& terms);
  // Quantises one row of weights to [-127, 127], within kSumLimit (levels.h), with the scale of least squared error;
  // returns the scale.
  float (*quantize_weights)(const float* row, int64_t width, int8_t* values);
};

// Static, not merely inline: each ISA must keep its own copy.
static inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline int64_t panels(const Gemm& gemm, int64_t outputs) { return (outputs + gemm.panel - 1) / gemm.panel; }
static inline int64_t packed_elements(const Gemm& gemm, int64_t inputs, int64_t outputs) {
  return round_up(inputs, gemm.group) * round_up(outputs, gemm.vector);
}

// The table of FUSEBERT_ISA, or the best that this machine can run; throws Invalid for an unknown or unsupported name.
const Kernels& kernels();
// By index, best first: the tables this machine can run; null after the last.
const Kernels* supported_kernels(int index);

}  // namespace fusebert
