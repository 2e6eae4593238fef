// The batch of one call of a Bert node: embeddings and mask as TensorFlow has them -> runs of the encoder.
//
// Masks are turned into what is added to the scores, as the graphs do that the node replaces. Where that hides whole
// positions, whoever looks, they are left out of the attention, and out of the run if the node may skip them; where it
// does anything else, it is added as it is.
#pragma once
#include <optional>
#include <vector>

#include "batch.h"
#include "tf_weights.h"

namespace fusebert {

// What a mask's numbers mean: to be added, or 1 for positions that are seen and 0 for those whose scores get `value`.
struct MaskRule {
  bool additive;
  float value;
};

struct Extent {
  int64_t sequences, length;
};
// Embeddings are [B, S, hidden] or [B * S, hidden]; masks [B, S], [B, 1 or S, S] or [B, 1 or heads, 1 or S, S], where B
// may be 1. Throws Invalid where they do not fit each other.
Extent extent_of(const TF_Tensor* embedded, const TF_Tensor* mask, int64_t hidden, int64_t heads);

class NodeBatch {
 public:
  NodeBatch(const TF_Tensor* mask, Extent extent, int64_t heads, const MaskRule& rule, Hidden hidden);

  // Runs the encoder on padded tensors: run has input, output, hidden states, pool and observer.
  void run(const fb_encoder* encoder, fb_run run, int64_t width) const;

 private:
  void add(const TF_Tensor* mask, const MaskRule& rule);
  bool hides_positions() const;
  void see(Hidden hidden);

  Extent extent_;
  int64_t shape_[4];          // of added_: 1 or sequences, 1 or heads, 1 or length, length
  std::vector<float> added_;  // to the scores
  std::vector<uint8_t> seen_;
  std::optional<Batch> batch_;
  std::vector<int64_t> blind_;  // the sequences in which nothing is seen, if they are computed
  float blind_value_ = 0;       // what all their scores get
};

}  // namespace fusebert
