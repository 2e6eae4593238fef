// The encoder: layers of products and attention over ragged rows, in waves that fit the cache.
#pragma once
#include <vector>

#include "attention.h"
#include "gemm.h"

namespace fusebert {

// A LayerNorm that owns its numbers.
class Norm {
 public:
  Norm(const fb_norm& norm, int64_t width, const std::string& name);
  void apply(const Kernels& kernels, const float* in, float* out, int64_t rows, int64_t stride) const;

 private:
  int64_t width_;
  float epsilon_;
  Array<float> gain_, bias_;
};

class Encoder {
 public:
  Encoder(const fb_encoder_spec& spec, const Pool::Turn& turn);
  int64_t bytes() const;
  void run(const fb_run& run) const;

 private:
  struct Layer {
    Layer(const Kernels& kernels, const fb_layer& layer, int64_t hidden, const std::string& name, Arena& store,
          const Pool::Turn& turn);
    Product qkv, attention_out, ffn_in, ffn_out;
    Norm attention_norm, output_norm;
    AttentionShape shape;
    int32_t activation;
  };
  class Wave;

  const Kernels& kernels_;
  int64_t hidden_;
  Arena store_;  // of all weights
  std::vector<Layer> layers_;
};

}  // namespace fusebert
