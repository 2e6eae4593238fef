#include "tf_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <span>

#include "error.h"
#include "factors.h"

namespace fusebert {
namespace {

// A fixed range this wide takes steps of a third: most of the numbers would become 0. The product then finds its range
// per token, as without factors. (The op that the files were made for left such a product in floats.)
constexpr float kLargestStep = 1.0f / 3;

uint64_t mix(uint64_t state, uint64_t word) {
  const auto product = static_cast<unsigned __int128>(state ^ word) * 0x9e3779b97f4a7c15ull;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

const float* floats(const TF_Tensor* tensor) { return static_cast<const float*>(TF_TensorData(tensor)); }

// The numbers of a tensor, two at a time.
uint64_t pair(const float* data, int64_t at) {
  uint64_t word;
  std::memcpy(&word, data + 2 * at, sizeof word);
  return word;
}

// One layer's 16 tensors: checks their shapes and says what the core shall read.
class LayerTensors {
 public:
  LayerTensors(std::span<const Tensor> tensors, const NodeSettings& settings, size_t number)
      : tensors_(tensors), settings_(settings), number_(number) {}

  fb_layer describe() const {
    const int64_t hidden = settings_.hidden, heads = settings_.heads, inner = settings_.inner, size = hidden / heads;
    const auto projection = [&](size_t at, const char* name) {
      return linear(at, name, {{hidden, hidden}, {hidden, heads, size}}, {{hidden}, {heads, size}});
    };
    fb_layer layer{};
    layer.query = projection(0, "query"), layer.key = projection(2, "key"), layer.value = projection(4, "value");
    layer.attention_out = linear(6, "attention output", {{hidden, hidden}, {heads, size, hidden}}, {{hidden}});
    layer.attention_norm = norm(8, "attention");
    layer.ffn_in = linear(10, "intermediate", {{hidden, inner}}, {{inner}});
    layer.ffn_out = linear(12, "output", {{inner, hidden}}, {{hidden}});
    layer.output_norm = norm(14, "output");
    return layer;
  }

 private:
  using Shapes = std::vector<std::vector<int64_t>>;

  const float* tensor(size_t at, const std::string& name, const Shapes& allowed) const {
    const TF_Tensor* const tensor = tensors_[at].get();
    const auto fits = [&](const std::vector<int64_t>& shape) {
      if (TF_NumDims(tensor) != static_cast<int>(shape.size())) return false;
      for (size_t i = 0; i < shape.size(); ++i)
        if (TF_Dim(tensor, static_cast<int>(i)) != shape[i]) return false;
      return true;
    };
    if (std::any_of(allowed.begin(), allowed.end(), fits)) return floats(tensor);
    std::string shapes;
    for (const auto& shape : allowed) {
      shapes += shapes.empty() ? "(" : " or (";
      for (size_t i = 0; i < shape.size(); ++i) shapes += (i ? ", " : "") + std::to_string(shape[i]);
      shapes += ")";
    }
    throw Invalid("weights[%zu], the %s of layer %zu, has shape %s; expected %s", number_ * kTensorsPerLayer + at,
                  name.c_str(), number_, shape_text(tensor).c_str(), shapes.c_str());
  }

  // A weight is stored [inputs, outputs], its sizes perhaps split by heads; the core wants outputs as rows.
  fb_linear linear(size_t at, const std::string& name, const Shapes& weight, const Shapes& bias) const {
    const int64_t inputs = weight[0][0], outputs = weight[0][1];
    return {{tensor(at, name + " weight", weight), outputs, inputs, 1, outputs, nullptr, FB_F32},
            tensor(at + 1, name + " bias", bias),
            nullptr};
  }
  fb_norm norm(size_t at, const std::string& name) const {
    const Shapes width{{settings_.hidden}};
    return {tensor(at, name + " LayerNorm gamma", width), tensor(at + 1, name + " LayerNorm beta", width), 0};
  }

  std::span<const Tensor> tensors_;
  const NodeSettings& settings_;
  size_t number_;
};

std::vector<fb_layer> describe(const std::vector<Tensor>& tensors, const NodeSettings& settings) {
  std::vector<fb_layer> layers;
  for (size_t i = 0; i < tensors.size() / kTensorsPerLayer; ++i)
    layers.push_back(LayerTensors({tensors.data() + i * kTensorsPerLayer, kTensorsPerLayer}, settings, i).describe());
  configure(settings.layers, layers);
  for (size_t i = 0; i < settings.factors.size(); i += 2) {
    const float low = settings.factors[i], high = settings.factors[i + 1];
    if ((std::max(high, 0.0f) - std::min(low, 0.0f)) / 255 > kLargestStep) continue;
    fb_plan& plan = layers[i / kFactorsPerLayer].plan[i % kFactorsPerLayer / 2];
    plan.input_min = low, plan.input_max = high;
  }
  for (size_t i = 0; i < layers.size() && !settings.input_scales.empty(); ++i) {
    const auto width = static_cast<size_t>(settings.hidden);
    const float* const scales = &settings.input_scales[2 * i * width];
    for (fb_linear* linear : {&layers[i].query, &layers[i].key, &layers[i].value}) linear->input_scales = scales;
    layers[i].ffn_in.input_scales = scales + width;
  }
  return layers;
}

EncoderHandle pack(const std::vector<fb_layer>& layers, const NodeSettings& settings, fb_pool* pool) {
  const fb_encoder_spec spec{sizeof spec, sizeof(fb_layer), layers.data(), static_cast<int32_t>(layers.size()),
                             static_cast<int32_t>(settings.hidden)};
  fb_encoder* encoder = nullptr;
  fb_error error{};
  check(fb_encoder_create(&spec, pool, &encoder, &error), error);
  return {encoder, [](fb_encoder* e) { fb_encoder_destroy(e); }};
}

// Everything that an encoder is made of, as a key.
std::string key(const std::array<uint64_t, 2>& digest, const NodeSettings& s) {
  std::string key;
  const auto put = [&](const auto& value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(digest), put(s.hidden), put(s.heads), put(s.inner), put(s.layers.epsilon[0]), put(s.layers.scale[0]);
  put(s.factors.size());
  for (const auto& list : {s.factors, s.input_scales})
    for (const float number : list) put(number);
  const char* isa = nullptr;  // FUSEBERT_ISA may change between two encoders
  fb_error error{};
  check(fb_isa(&isa, &error), error);
  return key + s.layers.activation + "/" + s.layers.precision + "/" + isa;
}

EncoderHandle shared_encoder(const std::array<uint64_t, 2>& digest, const std::vector<fb_layer>& layers,
                             const NodeSettings& settings, fb_pool* pool) {
  static std::mutex& mutex = *new std::mutex;
  static auto& known = *new std::map<std::string, std::weak_ptr<const fb_encoder>>;
  std::lock_guard lock(mutex);  // also while packing: the kernels that wait often want the same encoder
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& place = known[key(digest, settings)];
  EncoderHandle found = place.lock();
  if (!found) place = found = pack(layers, settings, pool);
  return found;
}

}  // namespace

void check(fb_status status, const fb_error& error) {
  if (status == FB_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status == FB_INVALID) throw Invalid("%s", error.message);
  if (status != FB_OK) throw std::runtime_error(error.message);
}

std::string shape_text(const TF_Tensor* tensor) {
  std::string text = "(";
  for (int i = 0; i < TF_NumDims(tensor); ++i) text += (i ? ", " : "") + std::to_string(TF_Dim(tensor, i));
  return text + ")";
}

PoolHandle shared_pool(int32_t threads) {
  static std::mutex& mutex = *new std::mutex;
  static auto& known = *new std::map<int32_t, std::weak_ptr<fb_pool>>;
  std::lock_guard lock(mutex);
  PoolHandle pool = known[threads].lock();
  if (pool) return pool;
  fb_pool* made = nullptr;
  fb_error error{};
  check(fb_pool_create(threads, &made, &error), error);
  known[threads] = pool = PoolHandle(made, DestroyPool());
  return pool;
}

EncoderHandle Weights::encoder(std::vector<Tensor> tensors, const NodeSettings& settings, fb_pool* pool) {
  if (const auto now = held(); now && now->holds(tensors)) return now->encoder;
  std::lock_guard packing(packing_);
  const auto now = held();  // another call may have packed them by now
  if (now && now->holds(tensors)) return now->encoder;
  const auto layers = describe(tensors, settings);  // checks the shapes
  const Digest numbers = digest(tensors);
  EncoderHandle encoder =
      now && now->digest == numbers ? now->encoder : shared_encoder(numbers, layers, settings, pool);
  const uint64_t some = sample(tensors);
  auto next = std::make_shared<const Held>(Held{std::move(tensors), some, numbers, encoder});
  std::lock_guard lock(mutex_);
  held_ = std::move(next);
  return encoder;
}

std::shared_ptr<const Weights::Held> Weights::held() {
  std::lock_guard lock(mutex_);
  return held_;
}

bool Weights::Held::holds(const std::vector<Tensor>& others) const {
  const auto same = [](const Tensor& a, const Tensor& b) {
    return TF_TensorData(a.get()) == TF_TensorData(b.get()) &&
           TF_TensorElementCount(a.get()) == TF_TensorElementCount(b.get());
  };
  return std::equal(tensors.begin(), tensors.end(), others.begin(), others.end(), same) &&
         Weights::sample(others) == sample;
}

uint64_t Weights::sample(const std::vector<Tensor>& tensors) {
  constexpr int64_t kPairs = 4;  // from each tensor: every one is a miss of all caches
  uint64_t state = 0;
  for (const Tensor& tensor : tensors) {
    const int64_t pairs = TF_TensorElementCount(tensor.get()) / 2;
    const float* const data = floats(tensor.get());
    if (pairs <= kPairs)
      for (int64_t i = 0; i < pairs; ++i) state = mix(state, pair(data, i));
    else
      for (int64_t i = 0; i < kPairs; ++i) state = mix(state, pair(data, i * (pairs - 1) / (kPairs - 1)));
  }
  return state;
}

Weights::Digest Weights::digest(const std::vector<Tensor>& tensors) {
  uint64_t lanes[4] = {1, 2, 3, 4};
  for (const Tensor& tensor : tensors) {
    const int64_t count = TF_TensorElementCount(tensor.get()), pairs = count / 2;
    const float* const data = floats(tensor.get());
    int64_t i = 0;
    for (; i + 4 <= pairs; i += 4)
      for (int64_t lane = 0; lane < 4; ++lane) lanes[lane] = mix(lanes[lane], pair(data, i + lane));
    for (; i < pairs; ++i) lanes[0] = mix(lanes[0], pair(data, i));
    uint32_t last = 0;
    if (count % 2) std::memcpy(&last, data + count - 1, sizeof last);
    lanes[1] = mix(lanes[1], last + (static_cast<uint64_t>(count) << 32));
  }
  return {mix(lanes[0], lanes[1]), mix(lanes[2], lanes[3])};
}

}  // namespace fusebert
