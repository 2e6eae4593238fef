// TensorFlow's way in: the ops Bert and BertCompact, both with the rows after every layer, and EncoderForm, which
// carries any form of encoder; registered through the C API when the library is loaded. docs/tensorflow-op.md describes
// them.
#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "batch.h"
#include "error.h"
#include "fusebert.h"
#include "pool.h"
#include "ranges.h"
#include "tf_api.h"
#include "tf_batch.h"
#include "tf_weights.h"

namespace fusebert {
namespace {

struct StatusSet {};  // thrown where a call of TensorFlow has set the status itself

class Status {
 public:
  Status() : status_(TF_NewStatus()) {}
  ~Status() { TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  operator TF_Status*() const { return status_; }
  bool good() const { return TF_GetCode(status_) == TF_OK; }
  void expect() const {
    if (!good()) throw StatusSet();
  }

  // Calls f; what it throws becomes the status.
  template <class F>
  void guard(const F& f) const {
    try {
      f();
    } catch (const StatusSet&) {
    } catch (const Invalid& e) {
      TF_SetStatus(status_, TF_INVALID_ARGUMENT, e.what());
    } catch (const FileError& e) {
      TF_SetStatusFromIOError(status_, e.number, e.message.c_str());
    } catch (const std::bad_alloc&) {
      TF_SetStatus(status_, TF_RESOURCE_EXHAUSTED, "out of memory");
    } catch (const std::exception& e) {
      TF_SetStatus(status_, TF_INTERNAL, e.what());
    }
  }

 private:
  TF_Status* status_;
};

class Attributes {
 public:
  Attributes(TF_OpKernelConstruction* node, const Status& status) : node_(node), status_(status) {}

  int64_t integer(const char* name) const { return get<int64_t>(name, TF_OpKernelConstruction_GetAttrInt64); }
  float number(const char* name) const { return get<float>(name, TF_OpKernelConstruction_GetAttrFloat); }
  size_t length(const char* name) const { return static_cast<size_t>(size(name).first); }
  bool flag(const char* name) const { return get<unsigned char>(name, TF_OpKernelConstruction_GetAttrBool) != 0; }
  TF_DataType type(const char* name) const { return get<TF_DataType>(name, TF_OpKernelConstruction_GetAttrType); }
  std::string text(const char* name) const {
    std::string value(static_cast<size_t>(size(name).second), '\0');
    TF_OpKernelConstruction_GetAttrString(node_, name, value.data(), value.size(), status_);
    status_.expect();
    return value;
  }
  std::vector<float> numbers(const char* name) const {
    std::vector<float> values(static_cast<size_t>(size(name).first));
    TF_OpKernelConstruction_GetAttrFloatList(node_, name, values.data(), static_cast<int>(values.size()), status_);
    status_.expect();
    return values;
  }

 private:
  template <class Value>
  Value get(const char* name, void (*read)(TF_OpKernelConstruction*, const char*, Value*, TF_Status*)) const {
    Value value{};
    read(node_, name, &value, status_);
    status_.expect();
    return value;
  }
  std::pair<int32_t, int32_t> size(const char* name) const {
    int32_t list = 0, total = 0;
    TF_OpKernelConstruction_GetAttrSize(node_, name, &list, &total, status_);
    status_.expect();
    return {std::max(list, 0), std::max(total, 0)};
  }

  TF_OpKernelConstruction* node_;
  const Status& status_;
};

enum class Form { bert, compact, layout };  // weights in BERT's order, the same as bytes, or as a layout names them

// What tells the ops apart, among it whether they give the rows after every layer.
struct Op {
  const char* name;
  bool states;
  Form form;
};

// One node of a graph. It does not change but for its weights, so calls may overlap.
class Kernel {
 public:
  Kernel(const Attributes& attributes, const Op& op) : pool_(attributes.integer("NumThreads")) {
    if (op.form == Form::layout)
      read_form(attributes);
    else
      read_layers(attributes, op);
    const int64_t states = op.states ? attributes.integer("NumHiddenStates") : 0;
    const bool any_number = op.form == Form::layout && states == 0;
    if (op.states && !any_number && states != static_cast<int64_t>(layer_ends_.size()))
      throw Invalid("NumHiddenStates must be the number of layers, %zu", layer_ends_.size());
    rule_ = {attributes.flag("AdditiveMask"), attributes.number("MaskValue")};
    if (!std::isfinite(rule_.value)) throw Invalid("MaskValue must be finite");
    hidden_ = hidden_named(attributes.text("Padding")).value_or(Hidden::compute);
  }

  void compute(TF_OpKernelContext* context, const Status& status) {
    const Tensor embedded = input(context, 0, status), mask = input(context, 1, status);
    const Extent extent = extent_of(embedded.get(), mask.get(), settings_.hidden, settings_.heads);
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < weights_count_; ++i) tensors.push_back(input(context, static_cast<int>(i) + 2, status));
    fb_pool* const pool = pool_.get();
    const EncoderHandle encoder = weights_.encoder(std::move(tensors), settings_, pool);
    const NodeBatch batch(mask.get(), extent, settings_.heads, rule_, hidden_);

    std::vector<Tensor> outputs;
    std::vector<float*> data;
    for (int i = 0; i < TF_NumOutputs(context); ++i) {
      outputs.push_back(output_like(embedded.get(), context, i, status));
      data.push_back(static_cast<float*>(TF_TensorData(outputs.back().get())));
    }
    auto run = unset<fb_run>();
    run.input = static_cast<const float*>(TF_TensorData(embedded.get()));
    run.output = data[0];
    run.taps = layer_ends_.data(), run.states = data.data() + 1;
    run.tap_count = static_cast<int32_t>(data.size()) - 1;
    run.pool = pool;
    Calibration::Watch watch(layers());
    if (calibration_) run.observer = watch.observer();
    batch.run(encoder.get(), run, settings_.hidden);
    if (calibration_) calibration_->add(watch);
  }

 private:
  size_t layers() const { return layer_ends_.size(); }

  // Blocks of any form.
  void read_form(const Attributes& attributes) {
    settings_.layout_text = attributes.text("Layout");
    settings_.layout = read_layout(settings_.layout_text);
    const Layout& layout = *settings_.layout;
    settings_.hidden = layout.hidden, settings_.heads = layout.heads();
    settings_.layers.precision = attributes.text("Precision");
    settings_.ranges = attributes.numbers("Ranges");
    weights_count_ = attributes.length("WeightTypes"), layer_ends_ = layout.layer_ends();
    if (layout.inputs.size() != weights_count_)
      throw Invalid("the Layout names %zu inputs, but there are %zu weights", layout.inputs.size(), weights_count_);
  }

  // BERT's layers.
  void read_layers(const Attributes& attributes, const Op& op) {
    settings_.compact = op.form == Form::compact;
    const char* const name = settings_.compact ? "WeightTypes" : "NumWeights";
    const int64_t count = settings_.compact ? static_cast<int64_t>(attributes.length(name)) : attributes.integer(name);
    const auto each = static_cast<int64_t>(settings_.layer_tensors());
    if (count < 1 || count % each)
      throw Invalid("%s is %lld, but a layer has %lld weights", name, static_cast<long long>(count),
                    static_cast<long long>(each));
    weights_count_ = static_cast<size_t>(count);
    for (int64_t i = 1; i <= count / each; ++i)
      layer_ends_.push_back(static_cast<int32_t>(i * static_cast<int64_t>(kLayerBlocks)) - 1);
    read_sizes(attributes);
    if (settings_.compact)
      read_compact_precision(attributes);
    else
      read_precision(attributes);
  }

  void read_sizes(const Attributes& attributes) {
    const auto size = [&](const char* name) {
      const int64_t value = attributes.integer(name);
      if (value < 1 || value > INT32_MAX) throw Invalid("%s is %lld", name, static_cast<long long>(value));
      return value;
    };
    settings_.hidden = size("HiddenSize"), settings_.heads = size("NumAttentionHeads");
    if (!settings_.compact) settings_.inner = size("IntermediateSize");
    if (settings_.hidden % settings_.heads)
      throw Invalid("HiddenSize %lld cannot be shared by %lld heads", static_cast<long long>(settings_.hidden),
                    static_cast<long long>(settings_.heads));
    const float epsilon = attributes.number("LayerNormEpsilon"), scale = attributes.number("AttentionScale");
    if (!(epsilon >= 0) || !std::isfinite(epsilon)) throw Invalid("LayerNormEpsilon is %g", epsilon);
    if (!std::isfinite(scale)) throw Invalid("AttentionScale is %g", scale);
    settings_.layers = {{settings_.heads}, attributes.text("HiddenAct"), {epsilon}, {scale}, "fp32", {}};
  }

  void read_precision(const Attributes& attributes) {
    const bool int8 = attributes.type("QuantizableDataType") == TF_QINT8;
    const bool bf16 = attributes.type("NonQuantizableDataType") == TF_BFLOAT16;
    settings_.layers.precision = int8 ? (bf16 ? "int8-bf16" : "int8") : (bf16 ? "bf16" : "fp32");
    const std::string path = attributes.text("QuantizationFactorsPath");
    settings_.ranges = attributes.numbers("QuantizationFactors");
    settings_.input_scales = attributes.numbers("InputScales");
    if (attributes.flag("CalibrateQuantFactors")) {
      if (int8 || bf16)
        throw Invalid("calibration runs in floats: QuantizableDataType and NonQuantizableDataType must be float");
      if (path.empty()) throw Invalid("calibration needs a QuantizationFactorsPath to write to");
      calibration_ = Calibration::of(path, layers());
    }
    if (!int8) {  // they stay in a graph that runs in floats for now
      settings_.ranges.clear(), settings_.input_scales.clear();
    } else if (!settings_.ranges.empty()) {
      if (!path.empty()) throw Invalid("give QuantizationFactors or QuantizationFactorsPath, not both");
      check_ranges(settings_.ranges, layers(), "QuantizationFactors");
    } else if (!path.empty()) {
      settings_.ranges = read_ranges(path, layers());
    }
    if (settings_.input_scales.empty()) return;
    if (!settings_.ranges.empty()) throw Invalid("give InputScales or quantisation factors, not both");
    if (settings_.input_scales.size() != 2 * layers() * static_cast<size_t>(settings_.hidden))
      throw Invalid("InputScales hold %zu numbers, but %zu layers need %zu", settings_.input_scales.size(), layers(),
                    2 * layers() * static_cast<size_t>(settings_.hidden));
  }

  void read_compact_precision(const Attributes& attributes) {
    settings_.layers.precision = attributes.type("NonQuantizableDataType") == TF_BFLOAT16 ? "int8-bf16" : "int8";
    settings_.ranges = attributes.numbers("QuantizationFactors");
    if (!settings_.ranges.empty()) check_ranges(settings_.ranges, layers(), "QuantizationFactors");
  }

  static Tensor input(TF_OpKernelContext* context, int index, const Status& status) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context, index, &tensor, status);
    status.expect();
    return Tensor(tensor);
  }
  static Tensor output_like(const TF_Tensor* tensor, TF_OpKernelContext* context, int index, const Status& status) {
    int64_t sizes[3] = {};
    for (int i = 0; i < TF_NumDims(tensor); ++i) sizes[i] = TF_Dim(tensor, i);
    const auto bytes = static_cast<size_t>(TF_TensorElementCount(tensor)) * sizeof(float);
    Tensor output(TF_AllocateOutput(context, index, TF_FLOAT, sizes, TF_NumDims(tensor), bytes, status));
    status.expect();
    return output;
  }

  size_t weights_count_ = 0;
  std::vector<int32_t> layer_ends_;  // places in the encoder's order
  NodePool pool_;
  NodeSettings settings_{};
  MaskRule rule_{};
  Hidden hidden_{};
  Weights weights_;
  std::shared_ptr<Calibration> calibration_;
};

constexpr Op kOps[] = {{"Bert", false, Form::bert},
                       {"BertHiddenStates", true, Form::bert},
                       {"BertCompact", false, Form::compact},
                       {"BertCompactHiddenStates", true, Form::compact},
                       {"EncoderForm", true, Form::layout}};

template <int Which>
void* create(TF_OpKernelConstruction* node) {
  const Status status;
  Kernel* kernel = nullptr;
  status.guard([&] { kernel = new Kernel(Attributes(node, status), kOps[Which]); });
  if (!status.good()) TF_OpKernelConstruction_Failure(node, status);
  return kernel;
}
void compute(void* kernel, TF_OpKernelContext* context) {
  const Status status;
  status.guard([&] { static_cast<Kernel*>(kernel)->compute(context, status); });
  if (!status.good()) TF_OpKernelContext_Failure(context, status);
}
void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Outputs have the shape of the embeddings. Ranks are checked here, sizes when there are tensors.
template <int Which>
void infer(TF_ShapeInferenceContext* context, TF_Status* status) {
  const auto make = [] {
    return std::unique_ptr<TF_ShapeHandle, void (*)(TF_ShapeHandle*)>(TF_NewShapeHandle(), TF_DeleteShapeHandle);
  };
  const auto given = make(), at_least = make(), checked = make();
  const auto good = [&] { return TF_GetCode(status) == TF_OK; };
  const auto check_rank = [&](int input, int64_t lowest, int64_t highest) {
    if (good()) TF_ShapeInferenceContextGetInput(context, input, given.get(), status);
    if (good()) TF_ShapeInferenceContextWithRankAtLeast(context, given.get(), lowest, at_least.get(), status);
    if (good()) TF_ShapeInferenceContextWithRankAtMost(context, at_least.get(), highest, checked.get(), status);
  };
  check_rank(1, 2, 4);
  check_rank(0, 2, 3);
  constexpr Op kind = kOps[Which];
  int64_t states = 0;  // of a form the context does not tell how many there are: their shapes stay unknown
  if (kind.form == Form::layout) {
    if (good()) TF_ShapeInferenceContextSetUnknownShape(context, status);
  } else if (kind.states) {
    const size_t each = kind.form == Form::compact ? kCompactTensors : kLayerTensors;
    states = (TF_ShapeInferenceContextNumInputs(context) - 2) / static_cast<int64_t>(each);
  }
  for (int i = 0; i <= states && good(); ++i) TF_ShapeInferenceContextSetOutput(context, i, checked.get(), status);
}

// Of Bert. The first eleven are those of the op that recipes and node definitions were made for; all later ones have
// defaults.
constexpr const char* kAttributes[] = {
    "MaskT: {int32, int64, float, bool}",
    "QuantizableDataType: {float, qint8} = DT_FLOAT",
    "NonQuantizableDataType: {float, bfloat16} = DT_FLOAT",
    "NumWeights: int >= 16",
    "HiddenSize: int >= 1 = 768",
    "NumAttentionHeads: int >= 1 = 12",
    "IntermediateSize: int >= 1 = 3072",
    "MaxSequenceLength: int >= 1 = 128",
    "HiddenAct: {'gelu_tanh', 'gelu_erf', 'gelu_quick', 'relu'} = 'gelu_tanh'",
    "CalibrateQuantFactors: bool = false",
    "QuantizationFactorsPath: string = ''",
    "QuantizationFactors: list(float) = []",
    "InputScales: list(float) = []",
    "LayerNormEpsilon: float = 1e-12",
    "AttentionScale: float = 0.0",
    "AdditiveMask: bool = false",
    "MaskValue: float = -10000.0",
    "Padding: {'compute', 'first', 'skip'} = 'compute'",
    "NumThreads: int >= 0 = 0",
};
// What Bert has and BertCompact has not: it is always int8, its scales are inputs, and layers may differ in inner size.
constexpr std::string_view kNotCompact[] = {
    "QuantizableDataType",     "NumWeights", "IntermediateSize", "CalibrateQuantFactors", "MaxSequenceLength",
    "QuantizationFactorsPath", "InputScales"};
// What the ops have besides.
constexpr const char* kOfCompact[] = {"WeightTypes: list({float, int8}) >= 28"};
constexpr const char* kOfForm[] = {"WeightTypes: list({float, int8}) >= 1", "Layout: string",
                                   "Precision: {'fp32', 'bf16', 'int8', 'int8-bf16'} = 'fp32'",
                                   "Ranges: list(float) = []", "NumHiddenStates: int >= 0 = 0"};
// What EncoderForm has of Bert's.
constexpr std::string_view kShared[] = {"MaskT", "AdditiveMask", "MaskValue", "Padding", "NumThreads"};

bool has(Form form, std::string_view attribute) {
  const std::string_view name = attribute.substr(0, attribute.find(':'));
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return form == Form::layout ? among(kShared) : form == Form::bert || !among(kNotCompact);
}

template <int Which>
bool register_op() {
  const Status status;
  constexpr Op kind = kOps[Which];
  TF_OpDefinitionBuilder* const op = TF_NewOpDefinitionBuilder(kind.name);
  for (const char* attribute : kAttributes)
    if (has(kind.form, attribute)) TF_OpDefinitionBuilderAddAttr(op, attribute);
  if (kind.form == Form::compact)
    for (const char* attribute : kOfCompact) TF_OpDefinitionBuilderAddAttr(op, attribute);
  if (kind.form == Form::layout)
    for (const char* attribute : kOfForm) TF_OpDefinitionBuilderAddAttr(op, attribute);
  TF_OpDefinitionBuilderAddInput(op, "embedded: float");
  TF_OpDefinitionBuilderAddInput(op, "input_mask: MaskT");
  TF_OpDefinitionBuilderAddInput(op, kind.form == Form::bert ? "weights: NumWeights * float" : "weights: WeightTypes");
  TF_OpDefinitionBuilderAddOutput(op, "encoded: float");
  if (kind.states) {
    if (kind.form != Form::layout) TF_OpDefinitionBuilderAddAttr(op, "NumHiddenStates: int >= 1");
    TF_OpDefinitionBuilderAddOutput(op, "hidden_states: NumHiddenStates * float");
  }
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, infer<Which>);
  TF_RegisterOpDefinition(op, status);
  if (status.good())
    TF_RegisterKernelBuilder(kind.name, TF_NewKernelBuilder(kind.name, "CPU", create<Which>, compute, destroy), status);
  return status.good();  // if not, TensorFlow finds no such op and says so
}

[[maybe_unused]] const bool registered =
    register_op<0>() && register_op<1>() && register_op<2>() && register_op<3>() && register_op<4>();

}  // namespace
}  // namespace fusebert
