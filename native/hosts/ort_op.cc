// ONNX Runtime's way in: the operator Encoder of the domain fusebert, through the C table of functions alone.
//
// Inputs: rows [B, S, H], or [B * S, H] with a mask [B, S]; the mask (forms: batch.h) or ""; then constant weights.
// With attribute layout (layout.h) these are what it names; without, 16 per layer of BERT (order: parts.h), or 28 with
// attribute weights_per_layer = 28: with the scales of int8 weights. A tensor without elements is a missing one.
// Outputs: the encoded rows, then the rows after each layer that attribute `taps` names. Other attributes: precision,
// ranges (settings.h), padding (batch.h), threads, taps; and without layout heads, activation, epsilon, scale.
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "batch.h"
#include "error.h"
#include "layout.h"
#include "ort_node.h"
#include "pool.h"
#include "settings.h"
#include "status.h"

namespace fusebert::ort {
namespace {

constexpr const char* kThreadsKey = "fusebert.threads";  // a session's own number of threads

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

class Kernel {
 public:
  Kernel(const OrtApi& api, const OrtKernelInfo* info, std::optional<int64_t> threads)
      : api_(api), pool_(threads.value_or(Attribute(api, info, "threads").number(0))) {
    const auto attribute = [&](const char* name) { return Attribute(api, info, name); };
    const std::string padding = attribute("padding").word("skip");
    const auto known = hidden_named(padding);
    if (!known) throw Invalid("padding '%s' is unknown; use one of skip, first, compute", padding.c_str());
    padding_ = *known;
    const std::string layout = attribute("layout").word("");
    if (layout.empty())
      take_layers(info);
    else
      take_layout(info, read_layout(layout));
  }

  void compute(OrtKernelContext* context) const {
    const auto rows = input(context, 0), given = input(context, 1);
    if (!rows || rows->type != kFloat) throw Invalid("rows must be float32");
    const std::optional<Mask> mask = given ? std::optional(as_mask(*given)) : std::nullopt;
    const auto [sequences, length] = sizes(*rows, mask);
    const Batch batch(mask ? &*mask : nullptr, sequences, length, heads_, padding_);

    auto run = unset<fb_run>();
    run.input = static_cast<const float*>(rows->data);
    run.output = output(context, 0, rows->shape);
    run.pool = pool_.get();
    batch.describe(run);
    size_t outputs = 0;
    check(api_, call(api_, kGetOutputCount, context, &outputs));
    std::vector<float*> states;
    for (size_t i = 1; i < outputs; ++i) states.push_back(output(context, i, rows->shape));
    run.taps = taps_.data(), run.states = states.data();
    run.tap_count = static_cast<int32_t>(states.size());

    call_core([&](fb_error* error) { return fb_encoder_run(encoder_.get(), &run, error); });
    batch.clear(run.output, hidden_);
    for (float* const state : states)
      if (state) batch.clear(state, hidden_);
  }

  const OrtApi& api() const { return api_; }

 private:
  // BERT's layers, whose weights stand in their order.
  void take_layers(const OrtKernelInfo* info) {
    const auto attribute = [&](const char* name) { return Attribute(api_, info, name); };
    Weights weights(api_, info, attribute("weights_per_layer").number(kPlainWeights));
    Settings settings;
    settings.heads = attribute("heads").whole_numbers();
    settings.activation = attribute("activation").word("gelu_erf");
    settings.epsilon = attribute("epsilon").numbers();
    settings.scale = attribute("scale").numbers();
    settings.precision = attribute("precision").word("fp32");
    settings.ranges = attribute("ranges").numbers();
    configure(settings, weights.int8, weights.blocks);
    hidden_ = weights.hidden(), heads_ = weights.blocks[0].attention.heads;
    for (size_t i = 0; i < weights.blocks.size(); ++i) {
      if (weights.blocks[i].attention.heads != heads_) heads_ = 1;
      if (i % kLayerBlocks == kLayerBlocks - 1) layer_ends_.push_back(static_cast<int32_t>(i));
    }
    take_taps(info);
    encoder_ = make_encoder(weights.blocks, hidden_, pool_.get());
  }

  // Blocks of any form, whose weights have names.
  void take_layout(const OrtKernelInfo* info, const Layout& layout) {
    for (const char* name : {"heads", "activation", "epsilon", "scale", "weights_per_layer"})
      if (Attribute(api_, info, name).given())
        throw Invalid("attribute %s does not go with a layout, which says it", name);
    const size_t count = weight_count(api_, info);
    if (layout.inputs.size() != count)
      throw Invalid("the layout names %zu inputs, but there are %zu weights", layout.inputs.size(), count);
    LaidOut made(layout, [&](size_t i) { return constant_weight(api_, info, i, layout.inputs[i]); });
    set_precision(Attribute(api_, info, "precision").word("fp32"), Attribute(api_, info, "ranges").numbers(), made.int8,
                  made.blocks);
    hidden_ = layout.hidden, heads_ = layout.heads(), layer_ends_ = layout.layer_ends();
    take_taps(info);
    encoder_ = make_encoder(made.blocks, hidden_, pool_.get(), layout.order, made.final ? &*made.final : nullptr);
  }

  void take_taps(const OrtKernelInfo* info) {
    const std::vector<int64_t> taps = Attribute(api_, info, "taps").whole_numbers();
    const size_t layers = layer_ends_.size();
    std::vector<bool> taken(layers);
    for (const int64_t tap : taps) {
      if (tap < 0 || tap >= static_cast<int64_t>(layers) || taken[static_cast<size_t>(tap)])
        throw Invalid("taps are different layers from 0 to %zu", layers - 1);
      taken[static_cast<size_t>(tap)] = true;
      taps_.push_back(layer_ends_[static_cast<size_t>(tap)]);
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

  const OrtApi& api_;
  int64_t hidden_ = 0, heads_ = 1;
  Hidden padding_ = Hidden::skip;
  std::vector<int32_t> layer_ends_, taps_;  // places where layers end, and those that are wanted
  NodePool pool_;
  EncoderHandle encoder_;
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
    // No InferOutputShapeFn: with one, ONNX Runtime up to at least 1.23 crashes on a node without mask, before asking
    // it. Whoever writes the node declares its output's shape.
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

// An entry of the session's config, if it is there.
std::optional<std::string> entry(const OrtApi& api, const OrtSessionOptions* options, const char* key) {
  int present = 0;
  check(api, call(api, kHasSessionConfigEntry, options, key, &present));
  if (!present) return std::nullopt;
  char text[64] = "";
  size_t size = sizeof text;
  check(api, call(api, kGetSessionConfigEntry, options, key, text, &size));
  return text;
}

// ONNX Runtime's threads spin for a while after every operator of theirs, on the cores that the encoder wants: on two
// cores a short sequence took twice as long. Whoever wants them to spin says so in the session's options.
void stop_spinning(const OrtApi& api, OrtSessionOptions* options) {
  constexpr const char* key = "session.intra_op.allow_spinning";
  if (!entry(api, options, key)) check(api, call(api, kAddSessionConfigEntry, options, key, "0"));
}

std::optional<int64_t> session_threads(const OrtApi& api, const OrtSessionOptions* options) {
  const auto text = entry(api, options, kThreadsKey);
  if (!text) return std::nullopt;
  char* end = nullptr;
  const int64_t threads = std::strtoll(text->c_str(), &end, 10);
  if (text->empty() || *end) throw Invalid("%s: '%s' is not a number", kThreadsKey, text->c_str());
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

// Options serve several sessions, and ONNX Runtime refuses a domain that they have already; so they note it.
void add_domain(const OrtApi& api, OrtSessionOptions* options) {
  constexpr const char* key = "fusebert.registered";
  const auto threads = session_threads(api, options);
  const std::string now = threads ? std::to_string(*threads) : "default",
                    before = entry(api, options, key).value_or(now);
  if (before != now)
    throw Invalid("these session options have the operator already, with other threads (%s, not %s): use new options",
                  before.c_str(), now.c_str());
  if (entry(api, options, key)) return;
  check(api, call(api, kAddCustomOpDomain, options, domain(api, threads)));
  check(api, call(api, kAddSessionConfigEntry, options, key, now.c_str()));
}

}  // namespace
}  // namespace fusebert::ort

// What ONNX Runtime looks for in a library of operators.
extern "C" FB_API OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace fusebert::ort;
  const OrtApi* const api = base->GetApi(kApiVersion);
  if (!api) return call(*base->GetApi(1), kCreateStatus, kFail, "fusebert needs ONNX Runtime 1.17 or newer");
  return guard(*api, [&] {
    stop_spinning(*api, options);
    add_domain(*api, options);
  });
}
