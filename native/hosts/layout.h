// Layout: an encoder of any form as the operators of frameworks carry it: a text that says what each block is and which
// weight each of the node's inputs holds, and those inputs. In: text and tensors; out: the blocks of parts.h.
//
// The text is lines of words, of which most are name=value (docs/onnxruntime-op.md has the grammar; formats/layout.py
// writes it):
//   encoder hidden=768 order=0,1                 the order may be left out: each block in turn
//   attention heads=12 key_heads=12 scale=0.125 window=64 position=rotary
//   norm before kind=layer epsilon=1e-05         of the block above it
//   feed_forward activation=silu
//   norm after kind=rms epsilon=1e-06
//   final kind=layer epsilon=1e-05
//   input block.0.query.weight                   of the node's weights, each in turn
// Nothing in it is believed: sizes have bounds, and what does not fit is Invalid, in one sentence.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parts.h"

namespace fusebert {

struct Layout {
  struct Norm {
    int32_t kind = 0;  // fb_norm_kind
    float epsilon = 0;
  };
  struct Block {
    BodyKind body = BodyKind::attention;
    int32_t heads = 0, key_heads = 0, window = 0;
    float scale = 0;
    int32_t position = FB_NO_POSITION, buckets = 0, reach = 0;
    int32_t activation = 0;
    bool adds_twice = false;
    std::map<std::string, Norm, std::less<>> norms;
  };

  // Where in the order each layer ends; a layer begins with an attention.
  std::vector<int32_t> layer_ends() const;
  // The number of heads that all attentions have; 1 if they differ.
  int64_t heads() const;

  int64_t hidden = 0;
  std::vector<int32_t> order;
  std::vector<Block> blocks;
  std::optional<Norm> final;
  std::vector<std::string> inputs;
};

// Throws Invalid, naming the line.
Layout read_layout(std::string_view text);

struct HostTensor {
  const void* data;
  int32_t type;  // fb_type
  std::vector<int64_t> shape;
};

// The blocks of a layout, as views into the tensors and into this object. A weight that no input is named for is not
// there, as is one without elements; a matrix is `weight` [outputs, inputs], or `kernel` [inputs, outputs].
class LaidOut {
 public:
  // tensor(i) is the node's weight i. Throws Invalid where a tensor is missing, has another shape, or has no use.
  LaidOut(const Layout& layout, const std::function<HostTensor(size_t)>& tensor);
  LaidOut(const LaidOut&) = delete;
  LaidOut& operator=(const LaidOut&) = delete;

  Blocks blocks;
  std::optional<fb_norm> final;
  bool int8 = false;  // some weight is

 private:
  struct Source;
  struct Vector {
    const float* data;
    std::vector<int64_t> shape;
  };
  const HostTensor* find(const std::string& name);
  Vector floats(const std::string& name);
  const float* vector(const std::string& name, int64_t size);
  std::optional<LinearParts> linear(const std::string& path);
  fb_norm norm(const std::string& path, const Layout::Norm& form, int64_t width);
  void place(const Layout::Block& form, const std::string& path, BlockParts& parts);

  std::map<std::string, std::pair<HostTensor, bool>, std::less<>> tensors_;  // by name, and whether they are used
  std::vector<std::unique_ptr<float[]>> converted_;
};

}  // namespace fusebert
