#include "settings.h"

#include <algorithm>
#include <cmath>

#include "error.h"

namespace fusebert {
namespace {

struct Named {
  const char* name;
  int32_t value;
};
constexpr Named kActivations[] = {{"identity", FB_IDENTITY},     {"gelu_erf", FB_GELU_ERF}, {"gelu_tanh", FB_GELU_TANH},
                                  {"gelu_quick", FB_GELU_QUICK}, {"relu", FB_RELU},         {"tanh", FB_TANH}};
constexpr Named kProducts[] = {{"fp32", FB_F32}, {"bf16", FB_BF16}, {"int8", FB_S8}, {"int8-bf16", FB_S8}};

int32_t find(std::span<const Named> names, const std::string& name, const char* attribute) {
  std::string known;
  for (const Named& each : names) {
    if (name == each.name) return each.value;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  throw Invalid("%s '%s' is unknown; use one of %s", attribute, name.c_str(), known.c_str());
}

// One value for all layers, or `each` values per layer: the value at `place`.
template <class T>
T pick(const std::vector<T>& values, size_t layers, size_t each, size_t place, const char* attribute) {
  if (values.size() == 1) return values[0];
  if (values.size() != layers * each)
    throw Invalid("%s holds %zu values; %zu layers need one for all, or %zu", attribute, values.size(), layers,
                  layers * each);
  return values[place];
}

constexpr float kSteps = 255, kLargestStep = 1.0f / 3;  // of 8 bits

void set_ranges(const std::vector<float>& ranges, std::span<fb_layer> layers) {
  if (ranges.size() != layers.size() * FB_PRODUCTS * 2)
    throw Invalid("ranges hold %zu numbers; %zu layers need %zu (low and high of four products)", ranges.size(),
                  layers.size(), layers.size() * FB_PRODUCTS * 2);
  const float* range = ranges.data();
  for (fb_layer& layer : layers)
    for (fb_plan& plan : layer.plan) {
      plan.input_min = *range++, plan.input_max = *range++;
      if (!(std::isfinite(plan.input_min) && std::isfinite(plan.input_max) && plan.input_min < plan.input_max))
        throw Invalid("ranges: every low must be finite and below its high");
      // Steps that large would make a 0 of most numbers: such a product finds its range per token, as in every host.
      if (std::max(plan.input_max, 0.0f) - std::min(plan.input_min, 0.0f) > kSteps * kLargestStep)
        plan.input_min = plan.input_max = 0;
    }
}

}  // namespace

void configure(const Settings& settings, std::span<fb_layer> layers) {
  const int32_t product = find(kProducts, settings.precision, "precision");
  // Attention has no 8-bit form: beside 8-bit products it stays f32, unless bf16 is asked for.
  const bool bf16 = settings.precision == "bf16" || settings.precision == "int8-bf16";
  const int32_t activation = find(kActivations, settings.activation, "activation");
  for (size_t i = 0; i < layers.size(); ++i) {
    fb_layer& layer = layers[i];
    const int64_t heads = pick(settings.heads, layers.size(), 1, i, "heads");
    if (heads < 1 || heads > INT32_MAX)
      throw Invalid("heads: %lld is not a number of heads", static_cast<long long>(heads));
    layer.heads = static_cast<int32_t>(heads);
    layer.activation = activation;
    layer.scale = settings.scale.empty() ? 0 : pick(settings.scale, layers.size(), 1, i, "scale");
    layer.attention_norm.epsilon = pick(settings.epsilon, layers.size(), 2, 2 * i, "epsilon");
    layer.output_norm.epsilon = pick(settings.epsilon, layers.size(), 2, 2 * i + 1, "epsilon");
    layer.attention = bf16 ? FB_BF16 : FB_F32;
    for (fb_plan& plan : layer.plan) plan = {product, 0, 0};
  }
  if (settings.ranges.empty()) return;
  if (product != FB_S8) throw Invalid("ranges belong to int8 and int8-bf16, not to %s", settings.precision.c_str());
  set_ranges(settings.ranges, layers);
}

}  // namespace fusebert
