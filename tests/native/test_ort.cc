// ONNX Runtime's operator against a runtime of a few lines that counts what it lends, made to run under sanitizers.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "check.h"
#include "fusebert.h"
#include "hosts/ort_api.h"

using namespace fusebert::ort;

std::atomic<int> lent = 0;  // statuses and shapes that were not given back yet

struct OrtStatus {
  std::string message;
};
struct OrtValue {
  int type;
  std::vector<int64_t> shape;
  std::vector<float> floats;
  std::vector<int64_t> ints;
};
struct OrtTensorTypeAndShapeInfo {
  const OrtValue* value;
};
struct OrtKernelInfo {
  std::map<std::string, std::vector<int64_t>> ints;
  std::map<std::string, std::vector<float>> floats;
  std::map<std::string, std::string> texts;
  std::vector<OrtValue> weights;
  size_t outputs = 1, variable = 0;  // an input that is not constant
};
struct OrtKernelContext {
  std::vector<const OrtValue*> inputs;
  std::vector<OrtValue> outputs;
};
struct OrtCustomOpDomain {
  std::string name;
  const OrtCustomOp* op = nullptr;
};
struct OrtSessionOptions {
  std::map<std::string, std::string> entries;
  OrtCustomOpDomain* domain = nullptr;
};

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions*, const OrtApiBase*);

namespace {

OrtApi table{};

Status error(const char* message) {
  ++lent;
  return new OrtStatus{message};
}

template <class Result, class... Args>
void provide(Slot<Result(Args...)> slot, std::type_identity_t<Result (*)(Args...)> f) {
  table.slots[slot.number] = reinterpret_cast<void (*)()>(f);
}

Status copy_text(const std::string& text, char* to, size_t* size) {
  const size_t room = *size;
  *size = text.size() + 1;
  if (!to) return nullptr;
  if (room < *size) return error("too small");
  std::memcpy(to, text.c_str(), *size);
  return nullptr;
}

template <class T>
Status copy_list(const std::map<std::string, std::vector<T>>& known, const char* name, T* to, size_t* size) {
  const auto found = known.find(name);
  if (found == known.end()) return error("no such attribute");
  *size = found->second.size();
  if (to) std::copy(found->second.begin(), found->second.end(), to);
  return nullptr;
}

void fill_table() {
  provide(kCreateStatus, [](int, Text message) { return error(message); });
  provide(kGetErrorMessage, [](const OrtStatus* status) { return status->message.c_str(); });
  provide(kReleaseStatus, [](OrtStatus* status) { --lent, delete status; });
  provide(kCreateCustomOpDomain, [](Text name, OrtCustomOpDomain** domain) -> Status {
    *domain = new OrtCustomOpDomain{name};
    return nullptr;
  });
  provide(kCustomOpDomainAdd, [](OrtCustomOpDomain* domain, const OrtCustomOp* op) -> Status {
    domain->op = op;
    return nullptr;
  });
  provide(kAddCustomOpDomain, [](OrtSessionOptions* options, OrtCustomOpDomain* domain) -> Status {
    options->domain = domain;
    return nullptr;
  });
  provide(kHasSessionConfigEntry, [](const OrtSessionOptions* options, Text key, int* present) -> Status {
    *present = options->entries.contains(key);
    return nullptr;
  });
  provide(kGetSessionConfigEntry, [](const OrtSessionOptions* options, Text key, char* to, size_t* size) {
    return copy_text(options->entries.at(key), to, size);
  });
  provide(kAddSessionConfigEntry, [](OrtSessionOptions* options, Text key, Text value) -> Status {
    options->entries[key] = value;
    return nullptr;
  });
  provide(kGetTensorMutableData, [](OrtValue* value, void** data) -> Status {
    *data = value->type == kInt64 ? static_cast<void*>(value->ints.data()) : value->floats.data();
    return nullptr;
  });
  provide(kGetTensorTypeAndShape, [](const OrtValue* value, OrtTensorTypeAndShapeInfo** info) -> Status {
    ++lent;
    *info = new OrtTensorTypeAndShapeInfo{value};
    return nullptr;
  });
  provide(kReleaseTensorTypeAndShapeInfo, [](OrtTensorTypeAndShapeInfo* info) { --lent, delete info; });
  provide(kGetTensorElementType, [](const OrtTensorTypeAndShapeInfo* info, int* type) -> Status {
    *type = info->value->type;
    return nullptr;
  });
  provide(kGetDimensionsCount, [](const OrtTensorTypeAndShapeInfo* info, size_t* rank) -> Status {
    *rank = info->value->shape.size();
    return nullptr;
  });
  provide(kGetDimensions, [](const OrtTensorTypeAndShapeInfo* info, int64_t* sizes, size_t rank) -> Status {
    std::copy_n(info->value->shape.begin(), rank, sizes);
    return nullptr;
  });
  provide(kGetAttributeInts,
          [](Info info, Text name, int64_t* to, size_t* size) { return copy_list(info->ints, name, to, size); });
  provide(kGetAttributeFloats,
          [](Info info, Text name, float* to, size_t* size) { return copy_list(info->floats, name, to, size); });
  provide(kGetAttributeInt, [](Info, Text, int64_t*) { return error("no such attribute"); });
  provide(kGetAttributeFloat, [](Info, Text, float*) { return error("no such attribute"); });
  provide(kGetAttributeString, [](Info info, Text name, char* to, size_t* size) {
    const auto found = info->texts.find(name);
    return found == info->texts.end() ? error("no such attribute") : copy_text(found->second, to, size);
  });
  provide(kGetNodeName, [](Info, char* to, size_t* size) { return copy_text("node", to, size); });
  provide(kKernelInputCount, [](Info info, size_t* count) -> Status {
    *count = 2 + info->weights.size();
    return nullptr;
  });
  provide(kKernelOutputCount, [](Info info, size_t* count) -> Status {
    *count = info->outputs;
    return nullptr;
  });
  provide(kGetConstantInput, [](Info info, size_t index, int* constant, const OrtValue** value) -> Status {
    *constant = index != info->variable;
    *value = *constant ? &info->weights.at(index - 2) : nullptr;
    return nullptr;
  });
  provide(kGetInput, [](const OrtKernelContext* context, size_t index, const OrtValue** value) -> Status {
    *value = context->inputs.at(index);
    return nullptr;
  });
  provide(kGetOutputCount, [](const OrtKernelContext* context, size_t* count) -> Status {
    *count = context->outputs.size();
    return nullptr;
  });
  provide(kGetOutput,
          [](OrtKernelContext* context, size_t index, const int64_t* sizes, size_t rank, OrtValue** value) -> Status {
            *value = &context->outputs.at(index);
            (*value)->type = kFloat;
            (*value)->shape.assign(sizes, sizes + rank);
            int64_t count = 1;
            for (size_t i = 0; i < rank; ++i) count *= sizes[i];
            (*value)->floats.assign(static_cast<size_t>(count), -1);  // rubbish that must be overwritten
            return nullptr;
          });
}

const OrtApiBase base{[](uint32_t) -> const OrtApi* { return &table; }, [] { return "9.9.9"; }};
const OrtApiBase old_base{[](uint32_t version) -> const OrtApi* { return version < 17 ? &table : nullptr; },
                          [] { return "1.16.0"; }};

// Whether the status is an error with this in its sentence; it is given back.
bool says(Status status, const char* part) {
  const bool said = status && status->message.find(part) != std::string::npos;
  if (status && !said) std::printf("said: %s\n", status->message.c_str());
  if (status) call(table, kReleaseStatus, status);
  return said;
}

constexpr int64_t kHidden = 8, kInner = 12;

OrtValue floats(std::vector<int64_t> shape, int seed) {
  OrtValue value{kFloat, std::move(shape), {}, {}};
  int64_t count = 1;
  for (const int64_t size : value.shape) count *= size;
  for (int64_t i = 0; i < count; ++i) value.floats.push_back(static_cast<float>((i * 7 + seed * 5) % 11 - 5) * 0.1f);
  return value;
}

OrtKernelInfo node(int layers) {
  OrtKernelInfo info;
  info.ints["heads"] = {2};
  info.floats["epsilon"] = {1e-5f};
  for (int i = 0; i < layers; ++i) {
    for (int part = 0; part < 4; ++part) {
      info.weights.push_back(floats({kHidden, kHidden}, part + i));
      info.weights.push_back(part == 1 ? floats({0}, 0) : floats({kHidden}, part));  // the keys have no bias
    }
    info.weights.push_back(floats({kHidden}, 1)), info.weights.push_back(floats({kHidden}, 2));
    info.weights.push_back(floats({kInner, kHidden}, i)), info.weights.push_back(floats({kInner}, 3));
    info.weights.push_back(floats({kHidden, kInner}, i)), info.weights.push_back(floats({kHidden}, 4));
    info.weights.push_back(floats({kHidden}, 5)), info.weights.push_back(floats({kHidden}, 6));
  }
  return info;
}

void test_a_session_from_start_to_end() {
  OrtSessionOptions options;
  options.entries["fusebert.threads"] = "2";
  CHECK(!RegisterCustomOps(&options, &base) && options.domain->name == "fusebert");
  CHECK(options.entries["session.intra_op.allow_spinning"] == "0");
  const OrtCustomOp& op = *options.domain->op;
  CHECK(std::strcmp(op.GetName(&op), "Encoder") == 0 && !op.GetExecutionProviderType(&op));
  CHECK(op.GetInputCharacteristic(&op, 1) == kOptional && op.GetInputCharacteristic(&op, 2) == kVariadic);

  OrtKernelInfo info = node(2);
  info.ints["taps"] = {0};
  info.outputs = 2;
  void* kernel = nullptr;
  CHECK(!op.CreateKernelV2(&op, &table, &info, &kernel));
  info.weights.clear();  // they are packed

  const OrtValue rows = floats({2, 3, kHidden}, 9), mask{kInt64, {2, 3}, {}, {1, 1, 0, 0, 0, 1}};
  const auto encode = [&](const OrtValue* given) {
    OrtKernelContext context{{&rows, given}, std::vector<OrtValue>(2)};
    CHECK(!op.KernelComputeV2(kernel, &context));
    return context.outputs;
  };
  const auto want = encode(&mask);
  for (const size_t row : {2, 3, 4})
    for (size_t i = 0; i < kHidden; ++i) CHECK(want[0].floats[row * kHidden + i] == 0);
  CHECK(want[0].floats != want[1].floats && want[0].shape == rows.shape && encode(nullptr)[0].floats != want[0].floats);

  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        OrtKernelContext context{{&rows, &mask}, std::vector<OrtValue>(2)};
        wrong += op.KernelComputeV2(kernel, &context) != nullptr || context.outputs[0].floats != want[0].floats;
      }
    });
  for (auto& caller : callers) caller.join();
  CHECK(wrong == 0);

  const OrtValue bad{kInt64, {2, 2}, {}, {1, 1, 1, 1}};
  OrtKernelContext context{{&rows, &bad}, std::vector<OrtValue>(2)};
  CHECK(says(op.KernelComputeV2(kernel, &context), "mask has shape (2, 2)"));
  op.KernelDestroy(kernel);
}

void test_what_does_not_fit_is_refused() {
  OrtSessionOptions options;
  CHECK(!RegisterCustomOps(&options, &base));
  const OrtCustomOp& op = *options.domain->op;
  const auto refused = [&](const char* part, const auto& change) {
    OrtKernelInfo info = node(1);
    change(info);
    void* kernel = nullptr;
    CHECK(says(op.CreateKernelV2(&op, &table, &info, &kernel), part) && !kernel);
  };
  refused("fusebert.Encoder 'node': 15 weights", [](auto& info) { info.weights.pop_back(); });
  refused("0 weights", [](auto& info) { info.weights.clear(); });
  refused("key.weight (input 4) is not constant", [](auto& info) { info.variable = 4; });
  refused("layer 0 up.bias (input 13) has 3 elements, not 12", [](auto& info) { info.weights[11] = floats({3}, 0); });
  refused("a width of 8 cannot be shared by 3 heads", [](auto& info) { info.ints["heads"] = {3}; });
  refused("2 outputs, but 0 taps", [](auto& info) { info.outputs = 2; });
  refused("threads: 1 to 1024", [](auto& info) { info.ints["threads"] = {5000}; });
  refused("padding 'auto' is unknown", [](auto& info) { info.texts["padding"] = "auto"; });

  OrtCustomOpDomain* const domain = options.domain;
  options.domain = nullptr;
  CHECK(!RegisterCustomOps(&options, &base) && !options.domain);  // once is enough
  options.entries["fusebert.threads"] = "2";
  CHECK(says(RegisterCustomOps(&options, &base), "with other threads (default, not 2)"));
  options.entries.erase("fusebert.registered");
  CHECK(!RegisterCustomOps(&options, &base) && options.domain && options.domain != domain);
  options.entries["fusebert.threads"] = "few";
  CHECK(says(RegisterCustomOps(&options, &base), "'few' is not a number"));
  CHECK(says(RegisterCustomOps(&options, &old_base), "needs ONNX Runtime 1.17"));
}

}  // namespace

int main() {
  fill_table();
  test_a_session_from_start_to_end();
  test_what_does_not_fit_is_refused();
  CHECK(lent == 0);
  return verdict();
}
