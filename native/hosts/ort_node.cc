#include "ort_node.h"

#include <algorithm>

#include "error.h"
#include "halves.h"

namespace fusebert::ort {
namespace {

constexpr size_t kFirstWeight = 2;  // after rows and mask

template <class T>
std::vector<T> list(const OrtApi& api, const OrtKernelInfo* info, Slot<Status(Info, Text, T*, size_t*)> slot,
                    const char* name) {
  size_t size = 0;
  if (!succeeds(api, call(api, slot, info, name, nullptr, &size)) || size == 0) return {};
  std::vector<T> values(size);
  check(api, call(api, slot, info, name, values.data(), &size));
  return values;
}

}  // namespace

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

// There is no call that tells an attribute's kind, so each is tried. Lists of the wrong kind may come back empty.
Attribute::Attribute(const OrtApi& api, const OrtKernelInfo* info, const char* name)
    : name_(name),
      ints_(list(api, info, kGetAttributeInts, name)),
      floats_(list(api, info, kGetAttributeFloats, name)) {
  int64_t whole;
  float number;
  size_t size = 0;
  if (succeeds(api, call(api, kGetAttributeInt, info, name, &whole))) ints_ = {whole};
  if (succeeds(api, call(api, kGetAttributeFloat, info, name, &number))) floats_ = {number};
  if (!succeeds(api, call(api, kGetAttributeString, info, name, nullptr, &size)) || size == 0) return;
  text_.resize(size);
  check(api, call(api, kGetAttributeString, info, name, text_.data(), &size));
  text_.pop_back();  // the zero at its end
}

std::vector<int64_t> Attribute::whole_numbers() const {
  if (!floats_.empty() || !text_.empty()) throw Invalid("attribute %s holds whole numbers", name_);
  return ints_;
}

std::vector<float> Attribute::numbers() const {
  if (!text_.empty()) throw Invalid("attribute %s holds numbers", name_);
  return floats_.empty() ? std::vector<float>(ints_.begin(), ints_.end()) : floats_;
}

int64_t Attribute::number(int64_t missing) const {
  const auto values = whole_numbers();
  if (values.size() > 1) throw Invalid("attribute %s is one number", name_);
  return values.empty() ? missing : values[0];
}

std::string Attribute::word(const char* missing) const {
  if (!ints_.empty() || !floats_.empty()) throw Invalid("attribute %s is a string", name_);
  return text_.empty() ? missing : text_;
}

Tensor::Tensor(const OrtApi& api, const OrtValue* value) {
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

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

size_t weight_count(const OrtApi& api, const OrtKernelInfo* info) {
  size_t inputs = 0;
  check(api, call(api, kKernelInputCount, info, &inputs));
  return inputs - std::min(inputs, kFirstWeight);
}

namespace {

Tensor constant_tensor(const OrtApi& api, const OrtKernelInfo* info, size_t number, const std::string& name) {
  int constant = 0;
  const OrtValue* value = nullptr;
  check(api, call(api, kGetConstantInput, info, kFirstWeight + number, &constant, &value));
  if (!constant || !value)
    throw Invalid("%s is not constant; weights are initializers that are not inputs of the graph", name.c_str());
  return Tensor(api, value);
}

}  // namespace

HostTensor constant_weight(const OrtApi& api, const OrtKernelInfo* info, size_t number, const std::string& name) {
  const std::string place = name.substr(0, 100) + " (input " + std::to_string(kFirstWeight + number) + ")";
  const Tensor tensor = constant_tensor(api, info, number, place);
  switch (tensor.type) {
    case kFloat: return {tensor.data, FB_F32, tensor.shape};
    case kFloat16: return {tensor.data, FB_F16, tensor.shape};
    case kBfloat16: return {tensor.data, FB_BF16, tensor.shape};
    case kInt8: return {tensor.data, FB_S8, tensor.shape};
    default: throw Invalid("%s is not float32, float16, bfloat16 or int8", place.c_str());
  }
}

Weights::Weights(const OrtApi& api, const OrtKernelInfo* info, int64_t per_layer)
    : api_(api), info_(info), per_layer_(static_cast<size_t>(per_layer)) {
  if (per_layer != kPlainWeights && per_layer != kAllWeights)
    throw Invalid("weights_per_layer is %lld or %lld, not %lld", static_cast<long long>(kPlainWeights),
                  static_cast<long long>(kAllWeights), static_cast<long long>(per_layer));
  const size_t count = weight_count(api, info);
  if (count == 0 || count % per_layer_) throw Invalid("%zu weights, but every layer has %zu", count, per_layer_);
  for (; layer_ < count / per_layer_; ++layer_, next_ = linears_ = 0) add_layer(blocks, *this);
}

LinearParts Weights::linear(std::string_view part) {
  const size_t place = next_, extra = kLayerTensors + linears_;
  next_ += 2, ++linears_;
  const Tensor weight = tensor(place, part, "weight");
  const auto named = [&] { return name(place, part, "weight"); };
  int32_t type = FB_F32;
  switch (weight.type) {
    case kFloat: break;
    case kFloat16: type = FB_F16; break;
    case kBfloat16: type = FB_BF16; break;
    case kInt8: type = FB_S8, int8 = true; break;
    default: throw Invalid("%s is not float32, float16, bfloat16 or int8", named().c_str());
  }
  if (weight.shape.size() != 2) throw Invalid("%s has %zu dimensions, not 2", named().c_str(), weight.shape.size());
  const int64_t outputs = weight.shape[0], inputs = weight.shape[1];
  if (hidden_ == 0) hidden_ = inputs;  // of the first query
  const bool extras = per_layer_ == kAllWeights;
  const float* scales = extras ? vector(extra, outputs, part, "scales") : nullptr;
  if (type == FB_S8 && !scales) throw Invalid("%s is int8 and has no scales", named().c_str());
  LinearParts parts;
  parts.weight = {sizeof(fb_matrix), type, weight.data, outputs, inputs, inputs, 1, scales};
  parts.linear.bias = vector(place + 1, outputs, part, "bias");
  parts.linear.input_scales = extras ? vector(extra + kLayerLinears, inputs, part, "input_scales") : nullptr;
  return parts;
}

fb_norm Weights::norm(std::string_view part) {
  const size_t place = next_;
  next_ += 2;
  const float *gain = vector(place, hidden_, part, "gain"), *bias = vector(place + 1, hidden_, part, "bias");
  return {sizeof(fb_norm), FB_LAYER_NORM, gain, bias, 0, 0};
}

// Null where the tensor has no elements: missing.
const float* Weights::vector(size_t place, int64_t size, std::string_view part, const char* field) {
  const Tensor values = tensor(place, part, field);
  const auto named = [&] { return name(place, part, field); };
  const int64_t count = values.elements();
  if (count == 0) return nullptr;
  if (count != size)
    throw Invalid("%s has %lld elements, not %lld", named().c_str(), static_cast<long long>(count),
                  static_cast<long long>(size));
  if (values.type == kFloat) return static_cast<const float*>(values.data);
  if (values.type != kFloat16 && values.type != kBfloat16)
    throw Invalid("%s is not float32, float16 or bfloat16", named().c_str());
  const auto* halves = static_cast<const uint16_t*>(values.data);
  auto& floats = converted_.emplace_back(std::make_unique<float[]>(static_cast<size_t>(count)));
  std::transform(halves, halves + count, floats.get(), values.type == kFloat16 ? half_value : bf16_value);
  return floats.get();
}

Tensor Weights::tensor(size_t place, std::string_view part, const char* field) const {
  return constant_tensor(api_, info_, layer_ * per_layer_ + place, name(place, part, field));
}

std::string Weights::name(size_t place, std::string_view part, const char* field) const {
  return "layer " + std::to_string(layer_) + " " + std::string(part) + "." + field + " (input " +
         std::to_string(kFirstWeight + layer_ * per_layer_ + place) + ")";
}

}  // namespace fusebert::ort
