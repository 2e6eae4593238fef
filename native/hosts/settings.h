// The attributes of a host's Encoder operator -> the fields of fb_layer they decide. The precisions mean what
// make_plan in plan.py means by them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fusebert.h"

namespace fusebert {

struct Settings {
  std::vector<int64_t> heads;      // one, or one per layer
  std::string activation;          // gelu_erf, gelu_tanh, gelu_quick, relu, tanh or identity
  std::vector<float> epsilon;      // one, or two per layer: of attention_norm, of output_norm
  std::vector<float> scale;        // none, one, or one per layer; 0: one over the square root of a key's size
  std::string precision = "fp32";  // fp32, bf16, int8 or int8-bf16
  std::vector<float> ranges;       // none, or low and high of the four products' inputs per layer: int8 is static
};

// Sets heads, activation, epsilons, scale and plan of every layer. Throws Invalid, naming the attribute.
void configure(const Settings& settings, std::span<fb_layer> layers);

}  // namespace fusebert
