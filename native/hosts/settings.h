// The attributes of a host's Encoder operator -> the fields of blocks they decide. The precisions mean what make_plan
// in plan.py means by them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parts.h"

namespace fusebert {

struct Settings {
  std::vector<int64_t> heads;      // one, or one per layer
  std::string activation;          // a name of FB_ACTIVATION_LIST
  std::vector<float> epsilon;      // one, or one per block
  std::vector<float> scale;        // none, one, or one per layer; 0: one over the square root of a key's size
  std::string precision = "fp32";  // fp32, bf16, int8 or int8-bf16
  std::vector<float> ranges;       // none, or low and high of both products' inputs per block: int8 is static
};

// Sets the precisions of every block, whatever its form; int8 weights need a precision that is int8.
void set_precision(const std::string& precision, const std::vector<float>& ranges, bool int8_weights, Blocks& blocks);
// Sets heads, activation, epsilons, scale and precisions of every block. Throws Invalid, naming the attribute.
void configure(const Settings& settings, bool int8_weights, Blocks& blocks);
// Fixes the range of a product's input, unless it is so wide that its steps would make a 0 of most numbers: such a
// product finds its range per token, as in every host.
void set_range(BlockParts& block, int product, float low, float high);

}  // namespace fusebert
