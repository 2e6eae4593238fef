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

// The numbers of a tensor, eight bytes at a time.
class Words {
 public:
  explicit Words(const TF_Tensor* tensor)
      : data_(static_cast<const char*>(TF_TensorData(tensor))),
        bytes_(static_cast<int64_t>(TF_TensorByteSize(tensor))) {}
  int64_t bytes() const { return bytes_; }
  int64_t count() const { return bytes_ / kBytes; }
  uint64_t operator[](int64_t at) const {
    uint64_t word;
    std::memcpy(&word, data_ + kBytes * at, sizeof word);
    return word;
  }
  uint64_t rest() const {  // what is left behind the last whole word
    uint64_t word = 0;
    if (bytes_ % kBytes) std::memcpy(&word, data_ + bytes_ / kBytes * kBytes, static_cast<size_t>(bytes_ % kBytes));
    return word;
  }

 private:
  static constexpr int64_t kBytes = 8;
  const char* data_;
  int64_t bytes_;
};

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
    return {sizeof(fb_norm), FB_LAYER_NORM, gain, take(name, "bias", width_), 0, 0};
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

// The same of BertCompact: every weight is stored [outputs, inputs], and what has no elements is missing.
class CompactTensors {
 public:
  CompactTensors(std::span<const Tensor> tensors, const NodeSettings& settings)
      : tensors_(tensors), hidden_(settings.hidden) {}

  LinearParts linear(std::string_view name) {
    const size_t weight = next_++, bias = next_++, scales = first_ + kLayerTensors + linears_++;
    const TF_Tensor* const tensor = tensors_[weight].get();
    if (TF_TensorType(tensor) != TF_INT8 || TF_NumDims(tensor) != 2)
      throw Invalid("weights[%zu], %.*s.weight, has shape %s; expected an int8 matrix [outputs, inputs]", weight,
                    static_cast<int>(name.size()), name.data(), shape_text(tensor).c_str());
    const int64_t outputs = TF_Dim(tensor, 0), inputs = TF_Dim(tensor, 1);  // the core checks how they fit together
    LinearParts parts;
    parts.weight = {sizeof(fb_matrix),
                    FB_S8,
                    TF_TensorData(tensor),
                    outputs,
                    inputs,
                    inputs,
                    1,
                    vector(scales, outputs, name, "scales")};
    if (!parts.weight.scales)
      throw Invalid("weights[%zu], %.*s.scales, is empty; a weight in bytes needs them", scales,
                    static_cast<int>(name.size()), name.data());
    parts.linear.bias = vector(bias, outputs, name, "bias");
    parts.linear.input_scales = vector(scales + kLayerLinears, inputs, name, "input_scales");
    return parts;
  }
  fb_norm norm(std::string_view name) {
    const float* const gain = vector(next_++, hidden_, name, "gain");
    return {sizeof(fb_norm), FB_LAYER_NORM, gain, vector(next_++, hidden_, name, "bias"), 0, 0};
  }
  void next_layer() { next_ = first_ += kCompactTensors, linears_ = 0; }

 private:
  const float* vector(size_t place, int64_t size, std::string_view part, const char* field) const {
    const TF_Tensor* const tensor = tensors_[place].get();
    if (TF_TensorElementCount(tensor) == 0) return nullptr;
    if (TF_TensorType(tensor) != TF_FLOAT || TF_NumDims(tensor) != 1 || TF_Dim(tensor, 0) != size)
      throw Invalid("weights[%zu], %.*s.%s, has shape %s; expected float of shape (%lld)", place,
                    static_cast<int>(part.size()), part.data(), field, shape_text(tensor).c_str(),
                    static_cast<long long>(size));
    return floats(tensor);
  }

  std::span<const Tensor> tensors_;
  int64_t hidden_;
  size_t first_ = 0, next_ = 0, linears_ = 0;
};

void add_layers(const std::vector<Tensor>& tensors, const NodeSettings& settings, Blocks& blocks) {
  const size_t layers = tensors.size() / settings.layer_tensors();
  if (settings.compact) {
    CompactTensors source(tensors, settings);
    for (size_t i = 0; i < layers; ++i, source.next_layer()) add_layer(blocks, source);
  } else {
    Tensors source(tensors, settings);
    for (size_t i = 0; i < layers; ++i) add_layer(blocks, source);
  }
}

HostTensor as_host(const Tensor& tensor) {
  std::vector<int64_t> shape;
  for (int i = 0; i < TF_NumDims(tensor.get()); ++i) shape.push_back(TF_Dim(tensor.get(), i));
  return {TF_TensorData(tensor.get()), TF_TensorType(tensor.get()) == TF_INT8 ? FB_S8 : FB_F32, std::move(shape)};
}

// The blocks that the tensors of a node stand for, as views into these.
class Described {
 public:
  Described(const std::vector<Tensor>& tensors, const NodeSettings& settings) : settings_(settings) {
    if (settings.layout) {
      laid_out_.emplace(*settings.layout, [&](size_t i) { return as_host(tensors[i]); });
      set_precision(settings.layers.precision, settings.ranges, laid_out_->int8, laid_out_->blocks);
      return;
    }
    add_layers(tensors, settings, layers_);
    configure(settings.layers, settings.compact, layers_);
    for (size_t i = 0; i < settings.ranges.size(); i += 2)
      set_range(layers_[i / kBlockRanges], static_cast<int>(i % kBlockRanges / 2), settings.ranges[i],
                settings.ranges[i + 1]);
    if (settings.input_scales.empty()) return;
    const float* scales = settings.input_scales.data();
    for (BlockParts& block : layers_) {
      for (fb_linear* linear : block.product(0)) linear->input_scales = scales;
      scales += settings.hidden;
    }
  }

  EncoderHandle encoder(fb_pool* pool) const {
    if (!laid_out_) return make_encoder(layers_, settings_.hidden, pool);
    const fb_norm* const final = laid_out_->final ? &*laid_out_->final : nullptr;
    return make_encoder(laid_out_->blocks, settings_.hidden, pool, settings_.layout->order, final);
  }

 private:
  const NodeSettings& settings_;
  Blocks layers_;
  std::optional<LaidOut> laid_out_;
};

// Everything that an encoder is made of, as a key.
std::string key(const std::array<uint64_t, 2>& digest, const NodeSettings& s) {
  std::string key;
  const auto put = [&](const auto& value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); };
  put(digest), put(s.hidden), put(s.heads), put(s.inner), put(s.compact);
  for (const auto& list : {s.layers.epsilon, s.layers.scale})
    for (const float number : list) put(number);
  put(s.ranges.size());
  for (const auto& list : {s.ranges, s.input_scales})
    for (const float number : list) put(number);
  const char* isa = nullptr;  // FUSEBERT_ISA may change between two encoders
  call_core([&](fb_error* error) { return fb_isa(&isa, error); });
  return key + s.layers.activation + "/" + s.layers.precision + "/" + isa + "/" + s.layout_text;
}

EncoderHandle shared_encoder(const std::array<uint64_t, 2>& digest, const Described& described,
                             const NodeSettings& settings, fb_pool* pool) {
  static std::mutex& mutex = *new std::mutex;
  static auto& known = *new std::map<std::string, std::weak_ptr<const fb_encoder>>;
  std::lock_guard lock(mutex);  // also while packing: the kernels that wait often want the same encoder
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& place = known[key(digest, settings)];
  EncoderHandle found = place.lock();
  if (!found) place = found = described.encoder(pool);
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
  const Described described(tensors, settings);  // checks the shapes
  const Digest numbers = digest(tensors);
  EncoderHandle encoder =
      now && now->digest == numbers ? now->encoder : shared_encoder(numbers, described, settings, pool);
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
  constexpr int64_t kWords = 4;  // from each tensor: every one is a miss of all caches
  uint64_t state = 0;
  for (const Tensor& tensor : tensors) {
    const Words words(tensor.get());
    const int64_t count = words.count();
    if (count <= kWords)
      for (int64_t i = 0; i < count; ++i) state = mix(state, words[i]);
    else
      for (int64_t i = 0; i < kWords; ++i) state = mix(state, words[i * (count - 1) / (kWords - 1)]);
  }
  return state;
}

Weights::Digest Weights::digest(const std::vector<Tensor>& tensors) {
  uint64_t lanes[4] = {1, 2, 3, 4};
  for (const Tensor& tensor : tensors) {
    const Words words(tensor.get());
    int64_t i = 0;
    for (; i + 4 <= words.count(); i += 4)
      for (int64_t lane = 0; lane < 4; ++lane) lanes[lane] = mix(lanes[lane], words[i + lane]);
    for (; i < words.count(); ++i) lanes[0] = mix(lanes[0], words[i]);
    lanes[1] = mix(lanes[1], words.rest());
    lanes[2] = mix(lanes[2], static_cast<uint64_t>(words.bytes()));
  }
  return {mix(lanes[0], lanes[1]), mix(lanes[2], lanes[3])};
}

}  // namespace fusebert
