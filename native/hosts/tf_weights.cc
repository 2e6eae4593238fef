#include "tf_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <span>

#include "error.h"
#include "status.h"

namespace fusebert {
namespace {

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

// The tensors of a node, taken one after the other: checks their shapes and says what the core shall read.
class Tensors {
 public:
  Tensors(std::span<const Tensor> tensors, const NodeSettings& settings) : tensors_(tensors) {
    const int64_t hidden = settings.hidden, heads = settings.heads, inner = settings.inner, size = hidden / heads;
    const Linear projection{{{hidden, hidden}, {hidden, heads, size}}, {{hidden}, {heads, size}}};
    for (const char* name : {"query", "key", "value"}) linears_[name] = projection;
    linears_["out"] = {{{hidden, hidden}, {heads, size, hidden}}, {{hidden}}};
    linears_["up"] = {{{hidden, inner}}, {{inner}}};
    linears_["down"] = {{{inner, hidden}}, {{hidden}}};
    width_ = {{hidden}};
  }

  // A weight is stored [inputs, outputs], its sizes perhaps split by heads; the core wants outputs as rows.
  LinearParts linear(std::string_view name) {
    const Linear& shapes = linears_.at(std::string(name));
    const int64_t inputs = shapes.weight[0][0], outputs = shapes.weight[0][1];
    LinearParts parts;
    parts.weight = {sizeof(fb_matrix), FB_F32, take(name, "weight", shapes.weight), outputs, inputs, 1,
                    outputs,           nullptr};
    parts.linear.bias = take(name, "bias", shapes.bias);
    return parts;
  }
  fb_norm norm(std::string_view name) {
    const float* const gain = take(name, "gain", width_);
    return {sizeof(fb_norm), FB_LAYER_NORM, gain, take(name, "bias", width_), 0};
  }

 private:
  using Shapes = std::vector<std::vector<int64_t>>;
  struct Linear {
    Shapes weight, bias;  // any of these
  };

  const float* take(std::string_view part, const char* field, const Shapes& allowed) {
    const TF_Tensor* const tensor = tensors_[next_++].get();
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
    throw Invalid("weights[%zu], %.*s.%s of layer %zu, has shape %s; expected %s", next_ - 1,
                  static_cast<int>(part.size()), part.data(), field, (next_ - 1) / kLayerTensors,
                  shape_text(tensor).c_str(), shapes.c_str());
  }

  std::span<const Tensor> tensors_;
  size_t next_ = 0;
  std::map<std::string, Linear> linears_;
  Shapes width_;
};

void describe(const std::vector<Tensor>& tensors, const NodeSettings& settings, Blocks& blocks) {
  Tensors source(tensors, settings);
  for (size_t i = 0; i < tensors.size() / kLayerTensors; ++i) add_layer(blocks, source);
  configure(settings.layers, blocks);
  for (size_t i = 0; i < settings.ranges.size(); i += 2)
    set_range(blocks[i / kBlockRanges], static_cast<int>(i % kBlockRanges / 2), settings.ranges[i],
              settings.ranges[i + 1]);
  if (settings.input_scales.empty()) return;
  const float* scales = settings.input_scales.data();
  for (BlockParts& block : blocks) {
    for (fb_linear* linear : block.product(0)) linear->input_scales = scales;
    scales += settings.hidden;
  }
}

// Everything that an encoder is made of, as a key.
std::string key(const std::array<uint64_t, 2>& digest, const NodeSettings& s) {
  std::string key;
  const auto put = [&](const auto& value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(digest), put(s.hidden), put(s.heads), put(s.inner), put(s.layers.epsilon[0]), put(s.layers.scale[0]);
  put(s.ranges.size());
  for (const auto& list : {s.ranges, s.input_scales})
    for (const float number : list) put(number);
  const char* isa = nullptr;  // FUSEBERT_ISA may change between two encoders
  call_core([&](fb_error* error) { return fb_isa(&isa, error); });
  return key + s.layers.activation + "/" + s.layers.precision + "/" + isa;
}

EncoderHandle shared_encoder(const std::array<uint64_t, 2>& digest, const Blocks& blocks, const NodeSettings& settings,
                             fb_pool* pool) {
  static std::mutex& mutex = *new std::mutex;
  static auto& known = *new std::map<std::string, std::weak_ptr<const fb_encoder>>;
  std::lock_guard lock(mutex);  // also while packing: the kernels that wait often want the same encoder
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& place = known[key(digest, settings)];
  EncoderHandle found = place.lock();
  if (!found) place = found = make_encoder(blocks, settings.hidden, pool);
  return found;
}

}  // namespace

std::string shape_text(const TF_Tensor* tensor) {
  std::string text = "(";
  for (int i = 0; i < TF_NumDims(tensor); ++i) text += (i ? ", " : "") + std::to_string(TF_Dim(tensor, i));
  return text + ")";
}

EncoderHandle Weights::encoder(std::vector<Tensor> tensors, const NodeSettings& settings, fb_pool* pool) {
  if (const auto now = held(); now && now->holds(tensors)) return now->encoder;
  std::lock_guard packing(packing_);
  const auto now = held();  // another call may have packed them by now
  if (now && now->holds(tensors)) return now->encoder;
  Blocks blocks;
  describe(tensors, settings, blocks);  // checks the shapes
  const Digest numbers = digest(tensors);
  EncoderHandle encoder =
      now && now->digest == numbers ? now->encoder : shared_encoder(numbers, blocks, settings, pool);
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
