// A padded batch with its mask -> the ragged batch that fb_run wants. For hosts that get padded tensors (ONNX Runtime,
// TensorFlow); the rules are those of encoder.Batch.masked in Python and of docs/masks.md.
//
//   const Batch batch(&mask, sequences, length, heads, Hidden::skip);  // Invalid where mask and batch do not fit
//   fb_run run{};                                                      // size, input, output, pool: the caller's
//   batch.describe(run);                                               // sequences, offsets, index, positions,
//   visible, bias fb_encoder_run(encoder, &run, &error); batch.clear(output, width); // zeros at the hidden rows
//
// There is nothing to gather or scatter: run.input and run.output are the padded tensors themselves, and the core reads
// and writes their rows through run.index. Batch keeps what run points to, and so does the mask: both outlive the call.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "fusebert.h"

namespace fusebert {

enum class MaskType { boolean, int32, int64, float32 };  // a boolean is a byte

// Of rank 1: lengths, whole numbers [B]. 2: 0 and 1 of any type [B, S]. 3: 0 and 1 of any type [B, S, S]. 4: booleans,
// or floats to be added to the scores [B, heads, S, S], where all but the last may be 1. Contiguous.
struct Mask {
  const void* data;
  MaskType type;
  std::span<const int64_t> shape;
};

// What becomes of the rows that a mask of rank 1 or 2 hides. `first` keeps the first row of every sequence, because
// poolers read it. Masks of rank 3 and 4 hide no rows.
enum class Hidden { skip, first, compute };
std::optional<Hidden> hidden_named(std::string_view name);

class Batch {
 public:
  // mask may be null: every row is visible. heads: what all layers have, or 1 if they differ.
  Batch(const Mask* mask, int64_t sequences, int64_t length, int64_t heads, Hidden hidden);

  // Sets what belongs to the batch; the rest of run is not touched. The pointers are into this object and the mask.
  void describe(fb_run& run) const;
  // Zeros the rows of a padded tensor [sequences * length, width] that hold no answer. Call it after the run.
  void clear(float* padded, int64_t width) const;

  int64_t rows() const { return offsets_.back(); }  // that are computed
  std::span<const int64_t> offsets() const { return offsets_; }
  std::span<const int64_t> index() const { return index_; }      // empty: every row, where it is
  std::span<const uint8_t> visible() const { return visible_; }  // empty: all that are computed
  std::span<const int64_t> cleared() const { return cleared_; }
  std::span<const int32_t> positions() const { return positions_; }  // empty: row after row

 private:
  void compact(const std::vector<uint8_t>& visible, int64_t length, Hidden hidden);
  void take_bias(const Mask& mask, int64_t length, int64_t heads);

  int64_t sequences_;
  std::vector<int64_t> offsets_, index_, cleared_;
  std::vector<int32_t> positions_;
  std::vector<uint8_t> visible_;
  std::vector<float> own_bias_;  // of a mask of booleans
  const float* bias_ = nullptr;
  int64_t bias_stride_[4] = {};
};

}  // namespace fusebert
