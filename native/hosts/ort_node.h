// What a node of an ONNX graph says: its attributes, its tensors, and its constant inputs as weights for the core.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "layout.h"
#include "ort_api.h"
#include "parts.h"

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
  bool given() const { return !(ints_.empty() && floats_.empty() && text_.empty()); }

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

// How many inputs a node has from the third on, and one of these, which must be constant. Throws Invalid.
size_t weight_count(const OrtApi& api, const OrtKernelInfo* info);
HostTensor constant_weight(const OrtApi& api, const OrtKernelInfo* info, size_t number, const std::string& name);

// The constant inputs of a node, from the third on: per layer those of add_layer (parts.h) in its order, then perhaps
// the scales of every linear, then the input scales of every linear. The blocks are views into the tensors and into
// this object.
class Weights {
 public:
  Weights(const OrtApi& api, const OrtKernelInfo* info, int64_t per_layer);
  int64_t hidden() const { return hidden_; }

  Blocks blocks;      // with weights, and nothing else
  bool int8 = false;  // some weight is

  // The next parts of a layer.
  LinearParts linear(std::string_view part);
  fb_norm norm(std::string_view part);

 private:
  const float* vector(size_t place, int64_t size, std::string_view part, const char* field);
  Tensor tensor(size_t place, std::string_view part, const char* field) const;
  std::string name(size_t place, std::string_view part, const char* field) const;

  const OrtApi& api_;
  const OrtKernelInfo* info_;
  int64_t hidden_ = 0;
  size_t per_layer_, layer_ = 0;
  size_t next_ = 0, linears_ = 0;  // of this layer's inputs and linears
  std::vector<std::unique_ptr<float[]>> converted_;
};

inline constexpr int64_t kPlainWeights = kLayerTensors;                    // per layer: without scales
inline constexpr int64_t kAllWeights = kPlainWeights + 2 * kLayerLinears;  // and with them

}  // namespace fusebert::ort
