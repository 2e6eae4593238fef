// The weights of one of our nodes: TensorFlow's tensors -> an encoder, packed once and kept until other weights come.
//
// How other weights are noticed. The tensors that were packed are held, so their memory is not given to others, and
// TensorFlow copies a variable rather than change one that is held: the same addresses mean the same numbers. Only old
// reference variables (and NumPy arrays that TensorFlow borrowed) are written in place; numbers from all over each
// tensor are compared for them. At other addresses, a digest of all numbers tells weights that moved, or are computed
// in every call, from new ones. Kernels whose weights and settings are the same share one encoder.
#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "layout.h"
#include "parts.h"
#include "settings.h"
#include "tf_api.h"

namespace fusebert {

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, DeleteTensor>;
std::string shape_text(const TF_Tensor* tensor);

// BertCompact's tensors of a layer: weights and biases of Bert, then scales and input scales of every linear.
inline constexpr size_t kCompactTensors = kLayerTensors + 2 * kLayerLinears;

// What an encoder is besides its weights.
struct NodeSettings {
  int64_t hidden, heads, inner;
  bool compact;  // the weights are bytes
  std::string layout_text;
  std::optional<Layout> layout;  // of the same; of `layers` only the precision counts then
  Settings layers;
  std::vector<float> ranges;        // of static quantisation, or empty
  std::vector<float> input_scales;  // [layers, 2, hidden] of qkv and ffn_in, or empty
  size_t layer_tensors() const { return compact ? kCompactTensors : kLayerTensors; }
};

class Weights {
 public:
  // The encoder of these tensors, packed now if need be. Any number of threads may ask. Throws Invalid, or bad_alloc.
  EncoderHandle encoder(std::vector<Tensor> tensors, const NodeSettings& settings, fb_pool* pool);

 private:
  using Digest = std::array<uint64_t, 2>;
  struct Held {
    bool holds(const std::vector<Tensor>& others) const;
    std::vector<Tensor> tensors;
    uint64_t sample;
    Digest digest;
    EncoderHandle encoder;
  };
  std::mutex mutex_, packing_;
  std::shared_ptr<const Held> held_;

  std::shared_ptr<const Held> held();
  static uint64_t sample(const std::vector<Tensor>& tensors);
  static Digest digest(const std::vector<Tensor>& tensors);
};

}  // namespace fusebert
