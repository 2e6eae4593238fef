// ONNX Runtime's way in: the operator Encoder of the domain fusebert, through the C table of functions alone.
//
// Inputs: rows [B, S, H] (or [B * S, H] with a mask that tells B and S), mask or "" (forms: batch.h), then 16 constant
// weights per layer in the order of kWeights, or 28 with attribute weights_per_layer: the scales of six int8 weights
// and their input scales follow. A tensor without elements is a missing one. Outputs: the encoded rows, then the rows
// after each layer that attribute `taps` names. Attributes: settings.h, padding (batch.h), threads, taps.
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "../batch.h"
#include "../error.h"
#include "../halves.h"
#include "../settings.h"
#include "ort_api.h"

namespace fusebert::ort {
namespace {

constexpr const char* kWeights[] = {"query.weight",         "query.bias",
                                    "key.weight",           "key.bias",
                                    "value.weight",         "value.bias",
                                    "attention_out.weight", "attention_out.bias",
                                    "attention_norm.gain",  "attention_norm.bias",
                                    "ffn_in.weight",        "ffn_in.bias",
                                    "ffn_out.weight",       "ffn_out.bias",
                                    "output_norm.gain",     "output_norm.bias",
                                    "query.scales",         "key.scales",
                                    "value.scales",         "attention_out.scales",
                                    "ffn_in.scales",        "ffn_out.scales",
                                    "query.input_scales",   "key.input_scales",
                                    "value.input_scales",   "attention_out.input_scales",
                                    "ffn_in.input_scales",  "ffn_out.input_scales"};
constexpr size_t kFirstWeight = 2, kPlainWeights = 16, kAllWeights = 28;
constexpr const char* kThreadsKey = "fusebert.threads";  // a session's own number of threads

void check(const OrtApi& api, Status status) {
  if (!status) return;
  const std::string message = call(api, kGetErrorMessage, status);
  call(api, kReleaseStatus, status);
  throw Invalid("%s", message.c_str());
}

bool succeeds(const OrtApi& api, Status status) {
  if (status) call(api, kReleaseStatus, status);
  return !status;
}

// No exception crosses the border: what goes wrong becomes a status.
template <class F>
Status guard(const OrtApi& api, const F& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const Invalid& error) {
    return call(api, kCreateStatus, kInvalidArgument, error.what());
  } catch (const std::exception& error) {
    return call(api, kCreateStatus, kFail, error.what());
  }
}

// An attribute of any kind; what it is not is empty. Empty altogether: not given.
struct Attribute {
  Attribute(const OrtApi& api, const OrtKernelInfo* info, const char* name) : name(name) {
    list(api, info, kGetAttributeInts, ints);
    list(api, info, kGetAttributeFloats, floats);
    int64_t whole;
    float number;
    size_t size = 0;
    if (succeeds(api, call(api, kGetAttributeInt, info, name, &whole))) ints = {whole};
    if (succeeds(api, call(api, kGetAttributeFloat, info, name, &number))) floats = {number};
    if (succeeds(api, call(api, kGetAttributeString, info, name, nullptr, &size))) {
      text.resize(size);
      check(api, call(api, kGetAttributeString, info, name, text.data(), &size));
      text.pop_back();  // the zero at its end
    }
  }
  template <class T>
  void list(const OrtApi& api, const OrtKernelInfo* info, Slot<Status(Info, Text, T*, size_t*)> slot,
            std::vector<T>& values) {
    size_t size = 0;
    if (!succeeds(api, call(api, slot, info, name, nullptr, &size)) || size == 0) return;
    values.resize(size);
    check(api, call(api, slot, info, name, values.data(), &size));
  }

  std::vector<int64_t> whole_numbers() const {
    if (!floats.empty() || !text.empty()) throw Invalid("attribute %s holds whole numbers", name);
    return ints;
  }
  std::vector<float> numbers() const {
    if (!text.empty()) throw Invalid("attribute %s holds numbers", name);
    return floats.empty() ? std::vector<float>(ints.begin(), ints.end()) : floats;
  }
  std::string word(const char* missing) const {
    if (!ints.empty() || !floats.empty()) throw Invalid("attribute %s is a string", name);
    return text.empty() ? missing : text;
  }
  int64_t number(int64_t missing) const {
    const auto values = whole_numbers();
    if (values.size() > 1) throw Invalid("attribute %s is one number", name);
    return values.empty() ? missing : values[0];
  }

  const char* name;
  std::vector<int64_t> ints;
  std::vector<float> floats;
  std::string text;
};

struct Tensor {
  Tensor(const OrtApi& api, const OrtValue* value) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api, call(api, kGetTensorTypeAndShape, value, &info));
    size_t rank = 0;
    Status failed = call(api, kGetTensorElementType, info, &type);
    if (!failed) failed = call(api, kGetDimensionsCount, info, &rank);
    shape.resize(rank);
    if (!failed) failed = call(api, kGetDimensions, info, shape.data(), rank);
    call(api, kReleaseTensorTypeAndShapeInfo, info);
    check(api, failed);
    void* bytes = nullptr;
    check(api, call(api, kGetTensorMutableData, const_cast<OrtValue*>(value), &bytes));
    data = bytes;
  }
  int64_t elements() const {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return count;
  }

  const void* data = nullptr;
  int type = kAny;
  std::vector<int64_t> shape;
};

// The constant inputs of a node as layers for the core. Views into the tensors, which outlive the packing.
class Weights {
 public:
  Weights(const OrtApi& api, const OrtKernelInfo* info, size_t per_layer) : api_(api), info_(info) {
    size_t inputs = 0;
    check(api, call(api, kKernelInputCount, info, &inputs));
    const size_t count = inputs - std::min(inputs, kFirstWeight);
    if (per_layer != kPlainWeights && per_layer != kAllWeights)
      throw Invalid("weights_per_layer is %zu, not %zu or %zu", kPlainWeights, kAllWeights, per_layer);
    if (count == 0 || count % per_layer) throw Invalid("%zu weights; each layer has %zu", count, per_layer);
    layers.resize(count / per_layer);
    for (size_t i = 0; i < layers.size(); ++i) read_layer(i, per_layer);
  }

  int64_t hidden() const { return layers[0].query.weight.columns; }

  std::vector<fb_layer> layers;
  bool int8 = false;

 private:
  void read_layer(size_t number, size_t per_layer) {
    layer_ = number, first_ = kFirstWeight + number * per_layer, per_layer_ = per_layer;
    fb_layer& layer = layers[number];
    layer.query = linear(0, 0), layer.key = linear(2, 1), layer.value = linear(4, 2);
    layer.attention_out = linear(6, 3), layer.ffn_in = linear(10, 4), layer.ffn_out = linear(12, 5);
    const int64_t width = layer.query.weight.columns;
    layer.attention_norm = {vector(8, width), vector(9, width), 0};
    layer.output_norm = {vector(14, width), vector(15, width), 0};
  }

  fb_linear linear(size_t place, size_t extra) {
    const Tensor weight = tensor(place);
    int32_t type = FB_F32;
    switch (weight.type) {
      case kFloat: break;
      case kFloat16: type = FB_F16; break;
      case kBfloat16: type = FB_BF16; break;
      case kInt8: type = FB_S8, int8 = true; break;
      default: throw Invalid("%s is not float32, float16, bfloat16 or int8", name(place).c_str());
    }
    if (weight.shape.size() != 2)
      throw Invalid("%s has %zu dimensions, not 2", name(place).c_str(), weight.shape.size());
    const int64_t outputs = weight.shape[0], inputs = weight.shape[1];
    const bool extras = per_layer_ == kAllWeights;
    const float* scales = extras ? vector(kPlainWeights + extra, outputs) : nullptr;
    if (type == FB_S8 && !scales) throw Invalid("%s is int8 and has no scales", name(place).c_str());
    return {{weight.data, outputs, inputs, inputs, 1, scales, type},
            vector(place + 1, outputs),
            extras ? vector(kPlainWeights + 6 + extra, inputs) : nullptr};
  }

  // Null where the tensor is empty.
  const float* vector(size_t place, int64_t size) {
    const Tensor values = tensor(place);
    const int64_t count = values.elements();
    if (count == 0) return nullptr;
    if (count != size)
      throw Invalid("%s has %lld elements, not %lld", name(place).c_str(), static_cast<long long>(count),
                    static_cast<long long>(size));
    if (values.type == kFloat) return static_cast<const float*>(values.data);
    if (values.type != kFloat16 && values.type != kBfloat16)
      throw Invalid("%s is not float32, float16 or bfloat16", name(place).c_str());
    const auto* halves = static_cast<const uint16_t*>(values.data);
    auto& floats = converted_.emplace_back(std::make_unique<float[]>(static_cast<size_t>(count)));
    std::transform(halves, halves + count, floats.get(), values.type == kFloat16 ? half_value : bf16_value);
    return floats.get();
  }

  Tensor tensor(size_t place) const {
    int constant = 0;
    const OrtValue* value = nullptr;
    check(api_, call(api_, kGetConstantInput, info_, first_ + place, &constant, &value));
    if (!constant || !value)
      throw Invalid("%s is not constant; weights must be initializers that are not inputs of the graph",
                    name(place).c_str());
    return Tensor(api_, value);
  }

  std::string name(size_t place) const {
    return "layer " + std::to_string(layer_) + " " + kWeights[place] + " (input " + std::to_string(first_ + place) +
           ")";
  }

  const OrtApi& api_;
  const OrtKernelInfo* info_;
  size_t layer_ = 0, first_ = 0, per_layer_ = 0;
  std::vector<std::unique_ptr<float[]>> converted_;
};

void check(fb_status status, const fb_error& error) {
  if (status == FB_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status != FB_OK) throw Invalid("%s", error.message);
}

// Nodes and sessions with the same number of threads share them, so that they take turns instead of crowding the cores.
// A forked process starts its own.
std::shared_ptr<fb_pool> shared_pool(int64_t threads) {
  static std::mutex mutex;
  static auto& pools = *new std::map<std::pair<pid_t, int64_t>, std::weak_ptr<fb_pool>>;  // may outlive all statics
  if (threads < 0 || threads > 1024) throw Invalid("threads: 1 to 1024, or 0 for all usable cores");
  const std::lock_guard lock(mutex);
  auto& known = pools[{getpid(), threads}];
  if (auto pool = known.lock()) return pool;
  fb_pool* made = nullptr;
  fb_error error{};
  check(fb_pool_create(static_cast<int32_t>(threads), &made, &error), error);
  std::shared_ptr<fb_pool> pool(made, fb_pool_destroy);
  known = pool;
  return pool;
}

class Kernel {
 public:
  Kernel(const OrtApi& api, const OrtKernelInfo* info, std::optional<int64_t> threads) : api_(api) {
    const auto attribute = [&](const char* name) { return Attribute(api, info, name); };
    Weights weights(api, info, static_cast<size_t>(attribute("weights_per_layer").number(kPlainWeights)));
    Settings settings;
    settings.heads = attribute("heads").whole_numbers();
    settings.activation = attribute("activation").word("gelu_erf");
    settings.epsilon = attribute("epsilon").numbers();
    settings.scale = attribute("scale").numbers();
    settings.precision = attribute("precision").word("fp32");
    settings.ranges = attribute("ranges").numbers();
    apply(settings, weights.layers);
    if (weights.int8 && weights.layers[0].plan[0].precision != FB_S8)
      throw Invalid("int8 weights need precision int8 or int8-bf16, not %s", settings.precision.c_str());

    const std::string padding = attribute("padding").word("skip");
    const auto known = hidden_named(padding);
    if (!known) throw Invalid("padding '%s' is unknown; use one of skip, first, compute", padding.c_str());
    padding_ = *known;
    layers_ = weights.layers.size();
    hidden_ = weights.hidden();
    heads_ = weights.layers[0].heads;
    for (const fb_layer& layer : weights.layers)
      if (layer.heads != heads_) heads_ = 1;
    take_taps(attribute("taps").whole_numbers(), info);
    pool_ = shared_pool(threads.value_or(attribute("threads").number(0)));

    const fb_encoder_spec spec{sizeof spec, sizeof(fb_layer), weights.layers.data(), static_cast<int32_t>(layers_),
                               static_cast<int32_t>(hidden_)};
    fb_encoder* made = nullptr;
    fb_error error{};
    check(fb_encoder_create(&spec, pool_.get(), &made, &error), error);
    encoder_.reset(made);
  }

  void compute(OrtKernelContext* context) const {
    const auto rows = input(context, 0), given = input(context, 1);
    if (!rows || rows->type != kFloat) throw Invalid("rows must be float32");
    const std::optional<Mask> mask = given ? std::optional(as_mask(*given)) : std::nullopt;
    const auto [sequences, length] = sizes(*rows, mask);
    const Batch batch(mask ? &*mask : nullptr, sequences, length, heads_, padding_);

    fb_run run{};
    run.size = sizeof run;
    run.input = static_cast<const float*>(rows->data);
    run.output = output(context, 0, rows->shape);
    run.pool = pool_.get();
    batch.describe(run);
    size_t outputs = 0;
    check(api_, call(api_, kGetOutputCount, context, &outputs));
    std::vector<float*> states(layers_);
    for (size_t i = 1; i < outputs; ++i) states[taps_[i - 1]] = output(context, i, rows->shape);
    if (outputs > 1) run.hidden_states = states.data(), run.hidden_state_count = static_cast<int32_t>(layers_);

    fb_error error{};
    check(fb_encoder_run(encoder_.get(), &run, &error), error);
    batch.clear(run.output, hidden_);
    for (float* const state : states)
      if (state) batch.clear(state, hidden_);
  }

  const OrtApi& api() const { return api_; }

 private:
  void take_taps(const std::vector<int64_t>& taps, const OrtKernelInfo* info) {
    std::vector<bool> taken(layers_);
    for (const int64_t tap : taps) {
      if (tap < 0 || tap >= static_cast<int64_t>(layers_) || taken[static_cast<size_t>(tap)])
        throw Invalid("taps are different layers from 0 to %zu", layers_ - 1);
      taken[static_cast<size_t>(tap)] = true;
      taps_.push_back(static_cast<size_t>(tap));
    }
    size_t outputs = 0;
    check(api_, call(api_, kKernelOutputCount, info, &outputs));
    if (outputs > 1 + taps_.size())
      throw Invalid("%zu outputs, but %zu taps: the first output is the encoded rows", outputs, taps_.size());
  }

  std::optional<Tensor> input(const OrtKernelContext* context, size_t index) const {
    const OrtValue* value = nullptr;
    check(api_, call(api_, kGetInput, context, index, &value));
    return value ? std::optional(Tensor(api_, value)) : std::nullopt;
  }

  float* output(OrtKernelContext* context, size_t index, const std::vector<int64_t>& shape) const {
    OrtValue* value = nullptr;
    check(api_, call(api_, kGetOutput, context, index, shape.data(), shape.size(), &value));
    if (!value) return nullptr;  // an output that nobody named
    void* data = nullptr;
    check(api_, call(api_, kGetTensorMutableData, value, &data));
    return static_cast<float*>(data);
  }

  static Mask as_mask(const Tensor& tensor) {
    switch (tensor.type) {
      case kBool: return {tensor.data, MaskType::boolean, tensor.shape};
      case kInt32: return {tensor.data, MaskType::int32, tensor.shape};
      case kInt64: return {tensor.data, MaskType::int64, tensor.shape};
      case kFloat: return {tensor.data, MaskType::float32, tensor.shape};
      default: throw Invalid("mask must be int32, int64, float32 or bool");
    }
  }

  // Sequences and their length: from the rows, or where these are flat, from the mask.
  std::pair<int64_t, int64_t> sizes(const Tensor& rows, const std::optional<Mask>& mask) const {
    const size_t rank = rows.shape.size();
    if ((rank != 2 && rank != 3) || rows.shape[rank - 1] != hidden_)
      throw Invalid("rows must be (B, S, %lld) or (B * S, %lld)", static_cast<long long>(hidden_),
                    static_cast<long long>(hidden_));
    if (rank == 3) return {rows.shape[0], rows.shape[1]};
    if (!mask || mask->shape.size() != 2) throw Invalid("flat rows need a mask (B, S): it tells which belong together");
    if (mask->shape[0] * mask->shape[1] != rows.shape[0])
      throw Invalid("%lld rows do not fit a mask of %lld x %lld", static_cast<long long>(rows.shape[0]),
                    static_cast<long long>(mask->shape[0]), static_cast<long long>(mask->shape[1]));
    return {mask->shape[0], mask->shape[1]};
  }

  struct Destroy {
    void operator()(fb_encoder* encoder) const { fb_encoder_destroy(encoder); }
  };

  const OrtApi& api_;
  size_t layers_ = 0;
  int64_t hidden_ = 0, heads_ = 1;
  Hidden padding_ = Hidden::skip;
  std::vector<size_t> taps_;
  std::shared_ptr<fb_pool> pool_;
  std::unique_ptr<fb_encoder, Destroy> encoder_;
};

// The operator as one session sees it: with that session's number of threads.
struct Operator : OrtCustomOp {
  explicit Operator(std::optional<int64_t> threads) : OrtCustomOp{}, threads(threads) {
    version = kApiVersion;
    GetName = [](const OrtCustomOp*) { return "Encoder"; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // the CPU's
    GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 3; };
    GetInputType = [](const OrtCustomOp*, size_t i) -> int { return i == 0 ? kFloat : kAny; };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t i) -> int {
      return i == 0 ? kRequired : i == 1 ? kOptional : kVariadic;
    };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
    GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 2; };
    GetOutputType = [](const OrtCustomOp*, size_t) -> int { return kFloat; };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t i) -> int { return i == 0 ? kRequired : kVariadic; };
    GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
    GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
    GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
    GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetStartVersion = [](const OrtCustomOp*) { return 1; };
    GetEndVersion = [](const OrtCustomOp*) { return 1; };
    CreateKernelV2 = create;
    KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
      const auto& own = *static_cast<const Kernel*>(kernel);
      return guard(own.api(), [&] { own.compute(context); });
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  }

  static Status create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
    return guard(*api, [&] {
      try {
        *kernel = new Kernel(*api, info, static_cast<const Operator*>(op)->threads);
      } catch (const Invalid& error) {
        char name[256] = "";
        size_t size = sizeof name;
        succeeds(*api, call(*api, kGetNodeName, info, name, &size));
        throw Invalid("fusebert.Encoder '%s': %s", name, error.what());
      }
    });
  }

  std::optional<int64_t> threads;
};

std::optional<int64_t> session_threads(const OrtApi& api, const OrtSessionOptions* options) {
  int present = 0;
  check(api, call(api, kHasSessionConfigEntry, options, kThreadsKey, &present));
  if (!present) return std::nullopt;
  char text[32] = "";
  size_t size = sizeof text;
  check(api, call(api, kGetSessionConfigEntry, options, kThreadsKey, text, &size));
  char* end = text;
  const int64_t threads = std::strtoll(text, &end, 10);
  if (end == text || *end) throw Invalid("%s: '%s' is not a number", kThreadsKey, text);
  return threads;
}

// Operator and domain must outlive every session that uses them, and nobody says when that is; so there is one for each
// number of threads ever asked for, and they stay.
OrtCustomOpDomain* domain(const OrtApi& api, std::optional<int64_t> threads) {
  static std::mutex mutex;
  static auto& known = *new std::map<std::optional<int64_t>, std::pair<std::unique_ptr<Operator>, OrtCustomOpDomain*>>;
  const std::lock_guard lock(mutex);
  auto& [op, made] = known[threads];
  if (!made) {
    op = std::make_unique<Operator>(threads);
    OrtCustomOpDomain* fresh = nullptr;
    check(api, call(api, kCreateCustomOpDomain, "fusebert", &fresh));
    check(api, call(api, kCustomOpDomainAdd, fresh, op.get()));
    made = fresh;
  }
  return made;
}

}  // namespace
}  // namespace fusebert::ort

// What ONNX Runtime looks for in a library of operators.
extern "C" FB_API OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace fusebert::ort;
  const OrtApi* const api = base->GetApi(kApiVersion);
  if (!api) return call(*base->GetApi(1), kCreateStatus, kFail, "fusebert needs ONNX Runtime 1.17 or newer");
  return guard(*api, [&] {
    check(*api, call(*api, kAddCustomOpDomain, options, domain(*api, session_threads(*api, options))));
  });
}
