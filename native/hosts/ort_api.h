// The part of ONNX Runtime's C interface that a custom operator needs, declared here so that no header of theirs is
// needed to build and one library serves every version from 1.17 on. The table of functions is append-only: a slot's
// number and signature never change. Source of truth: onnxruntime_c_api.h of microsoft/onnxruntime.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

extern "C" {

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;

struct OrtApi {
  void (*slots[250])();  // there are more, but these are what is used here
};
struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // NULL where the runtime is older
  const char* (*GetVersionString)();
};

// A custom operator: callbacks that get the operator itself. `version` says how many of them there are.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  // Of later versions.
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

}  // extern "C"

namespace fusebert::ort {

inline constexpr uint32_t kApiVersion = 17;  // the first whose operators have a status and a version of their own

enum ErrorCode { kFail = 1, kInvalidArgument = 2 };
enum ElementType { kAny = 0, kFloat = 1, kInt8 = 3, kInt32 = 6, kInt64 = 7, kBool = 9, kFloat16 = 10, kBfloat16 = 16 };
enum Characteristic { kRequired = 0, kOptional = 1, kVariadic = 2 };

template <class Signature>
struct Slot {
  int number;
};
using Status = OrtStatus*;
using Info = const OrtKernelInfo*;
using Text = const char*;

inline constexpr Slot<Status(int code, Text)> kCreateStatus{0};
inline constexpr Slot<Text(const OrtStatus*)> kGetErrorMessage{2};
inline constexpr Slot<Status(Text name, OrtCustomOpDomain**)> kCreateCustomOpDomain{26};
inline constexpr Slot<Status(OrtCustomOpDomain*, const OrtCustomOp*)> kCustomOpDomainAdd{27};
inline constexpr Slot<Status(OrtSessionOptions*, OrtCustomOpDomain*)> kAddCustomOpDomain{28};
inline constexpr Slot<Status(OrtValue*, void**)> kGetTensorMutableData{51};
inline constexpr Slot<Status(const OrtTensorTypeAndShapeInfo*, int*)> kGetTensorElementType{60};
inline constexpr Slot<Status(const OrtTensorTypeAndShapeInfo*, size_t*)> kGetDimensionsCount{61};
inline constexpr Slot<Status(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t)> kGetDimensions{62};
inline constexpr Slot<Status(const OrtValue*, OrtTensorTypeAndShapeInfo**)> kGetTensorTypeAndShape{65};
inline constexpr Slot<Status(Info, Text name, float*)> kGetAttributeFloat{85};
inline constexpr Slot<Status(Info, Text name, int64_t*)> kGetAttributeInt{86};
inline constexpr Slot<Status(Info, Text name, char*, size_t*)> kGetAttributeString{87};
inline constexpr Slot<Status(const OrtKernelContext*, size_t*)> kGetOutputCount{89};
inline constexpr Slot<Status(const OrtKernelContext*, size_t, const OrtValue**)> kGetInput{90};
inline constexpr Slot<Status(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**)> kGetOutput{91};
inline constexpr Slot<void(OrtStatus*)> kReleaseStatus{93};
inline constexpr Slot<void(OrtTensorTypeAndShapeInfo*)> kReleaseTensorTypeAndShapeInfo{99};
inline constexpr Slot<Status(OrtSessionOptions*, Text key, Text value)> kAddSessionConfigEntry{130};
inline constexpr Slot<Status(Info, Text name, float*, size_t*)> kGetAttributeFloats{162};
inline constexpr Slot<Status(Info, Text name, int64_t*, size_t*)> kGetAttributeInts{163};
inline constexpr Slot<Status(Info, size_t*)> kKernelInputCount{230};
inline constexpr Slot<Status(Info, size_t*)> kKernelOutputCount{231};
inline constexpr Slot<Status(const OrtSessionOptions*, Text key, int*)> kHasSessionConfigEntry{237};
inline constexpr Slot<Status(const OrtSessionOptions*, Text key, char*, size_t*)> kGetSessionConfigEntry{238};
inline constexpr Slot<Status(Info, char*, size_t*)> kGetNodeName{244};
inline constexpr Slot<Status(Info, size_t, int*, const OrtValue**)> kGetConstantInput{249};

template <class Result, class... Args>
Result call(const OrtApi& api, Slot<Result(Args...)> slot, std::type_identity_t<Args>... args) {
  return reinterpret_cast<Result (*)(Args...)>(api.slots[slot.number])(args...);
}

}  // namespace fusebert::ort
