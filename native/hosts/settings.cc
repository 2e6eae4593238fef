#include "settings.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "error.h"

namespace fusebert {
namespace {

// The number of a name, which name_of gives.
int32_t number_of(const std::string& name, const char* (*name_of)(int32_t), const char* attribute) {
  std::string known;
  for (int32_t i = 0; name_of(i); ++i) {
    if (name == name_of(i)) return i;
    known += (i ? ", " : "") + std::string(name_of(i));
  }
  throw Invalid("%s '%s' is unknown; use one of %s", attribute, name.c_str(), known.c_str());
}

struct Precision {
  const char* name;
  int32_t products, scores;
};
constexpr Precision kPrecisions[] = {
    {"fp32", FB_F32, FB_F32}, {"bf16", FB_BF16, FB_BF16}, {"int8", FB_S8, FB_F32}, {"int8-bf16", FB_S8, FB_BF16}};
const char* precision_name(int32_t number) {
  return number < static_cast<int32_t>(std::size(kPrecisions)) ? kPrecisions[number].name : nullptr;
}

// One value for all, or one for each of so many: the value at `place`.
template <class T>
T pick(const std::vector<T>& values, size_t layers, size_t count, size_t place, const char* attribute) {
  if (values.size() == 1) return values[0];
  if (values.size() != count)
    throw Invalid("%s holds %zu values; %zu layers need one for all, or %zu", attribute, values.size(), layers, count);
  return values[place];
}

constexpr float kSteps = 255, kLargestStep = 1.0f / 3;  // of 8 bits

void set_ranges(const std::vector<float>& ranges, Blocks& blocks) {
  const size_t count = blocks.size() * kBlockRanges;
  if (ranges.size() != count)
    throw Invalid("ranges hold %zu numbers; %zu blocks need %zu (low and high of two products)", ranges.size(),
                  blocks.size(), count);
  const float* range = ranges.data();
  for (BlockParts& block : blocks)
    for (int product = 0; product < 2; ++product, range += 2) {
      if (!(std::isfinite(range[0]) && std::isfinite(range[1]) && range[0] <= range[1]))
        throw Invalid("ranges: every low must be finite and not above its high");
      set_range(block, product, range[0], range[1]);
    }
}

}  // namespace

void set_range(BlockParts& block, int product, float low, float high) {
  if (std::max(high, 0.0f) - std::min(low, 0.0f) > kSteps * kLargestStep) return;
  for (fb_linear* linear : block.product(product)) linear->low = low, linear->high = high;
}

void set_precision(const std::string& precision, const std::vector<float>& ranges, bool int8_weights, Blocks& blocks) {
  const Precision& known = kPrecisions[number_of(precision, precision_name, "precision")];
  const bool int8 = known.products == FB_S8;
  if (int8_weights && !int8) throw Invalid("int8 weights need precision int8 or int8-bf16, not %s", precision.c_str());
  for (BlockParts& block : blocks) {
    block.attention.precision = known.scores;
    block.attention.bytes = int8 ? FB_WHERE_IT_PAYS : FB_NEVER;
    for (const int product : {0, 1})
      for (fb_linear* linear : block.product(product)) linear->precision = known.products;
  }
  if (ranges.empty()) return;
  if (!int8) throw Invalid("ranges belong to int8 and int8-bf16, not to %s", precision.c_str());
  set_ranges(ranges, blocks);
}

void configure(const Settings& settings, bool int8_weights, Blocks& blocks) {
  const int32_t activation = number_of(settings.activation, fb_activation_name, "activation");
  const size_t layers = blocks.size() / kLayerBlocks;
  for (size_t i = 0; i < blocks.size(); ++i) {
    BlockParts& block = blocks[i];
    const size_t layer = i / kLayerBlocks;
    const int64_t heads = pick(settings.heads, layers, layers, layer, "heads");
    if (heads < 1 || heads > INT32_MAX)
      throw Invalid("heads: %lld is not a number of heads", static_cast<long long>(heads));
    block.attention.heads = static_cast<int32_t>(heads);
    block.attention.scale = settings.scale.empty() ? 0 : pick(settings.scale, layers, layers, layer, "scale");
    block.feed_forward.activation = activation;
    for (fb_norm& norm : block.norms()) norm.epsilon = pick(settings.epsilon, layers, blocks.size(), i, "epsilon");
  }
  set_precision(settings.precision, settings.ranges, int8_weights, blocks);
}

}  // namespace fusebert
