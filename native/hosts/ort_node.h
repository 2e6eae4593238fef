// What a node of an ONNX graph says: its attributes, its tensors, and its constant inputs as weights for the core.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "fusebert.h"
#include "ort_api.h"

namespace fusebert::ort {

// A status that is an error becomes the exception Invalid, with the same sentence.
void check(const OrtApi& api, Status status);
// Whether a call went well, where it need not.
bool succeeds(const OrtApi& api, Status status);

// An attribute of any kind. One that is not given gives nothing, or what is said for `missing`.
class Attribute {
 public:
  Attribute(const OrtApi& api, const OrtKernelInfo* info, const char* name);
  std::vector<int64_t> whole_numbers() const;  // a list, or one
  std::vector<float> numbers() const;          // a list, or one
  int64_t number(int64_t missing) const;
  std::string word(const char* missing) const;

 private:
  const char* name_;
  std::vector<int64_t> ints_;
  std::vector<float> floats_;
  std::string text_;
};

// A view.
struct Tensor {
  Tensor(const OrtApi& api, const OrtValue* value);
  int64_t elements() const;

  const void* data = nullptr;
  int type = kAny;  // ElementType
  std::vector<int64_t> shape;
};

// The constant inputs of a node, from the third on: per layer the weights of kWeights, in that order. The layers are
// views into the tensors and into this object.
class Weights {
 public:
  Weights(const OrtApi& api, const OrtKernelInfo* info, int64_t per_layer);
  int64_t hidden() const { return layers[0].query.weight.columns; }

  std::vector<fb_layer> layers;  // with weights, and nothing else
  bool int8 = false;             // some weight is

 private:
  void read_layer(size_t number);
  fb_linear linear(size_t place, size_t extra);
  const float* vector(size_t place, int64_t size);
  Tensor tensor(size_t place) const;
  std::string name(size_t place) const;

  const OrtApi& api_;
  const OrtKernelInfo* info_;
  size_t per_layer_, layer_ = 0, first_ = 0;
  std::vector<std::unique_ptr<float[]>> converted_;
};

inline constexpr int64_t kPlainWeights = 16, kAllWeights = 28;  // per layer: without and with scales
inline constexpr const char* kWeights[kAllWeights] = {
    "query.weight", "query.bias", "key.weight", "key.bias", "value.weight", "value.bias", "attention_out.weight",
    "attention_out.bias", "attention_norm.gain", "attention_norm.bias", "ffn_in.weight", "ffn_in.bias",
    "ffn_out.weight", "ffn_out.bias", "output_norm.gain", "output_norm.bias",
    // Scales of int8 weights, and input scales.
    "query.scales", "key.scales", "value.scales", "attention_out.scales", "ffn_in.scales", "ffn_out.scales",
    "query.input_scales", "key.input_scales", "value.input_scales", "attention_out.input_scales", "ffn_in.input_scales",
    "ffn_out.input_scales"};

}  // namespace fusebert::ort
