// Compiled once per instruction set (see CMakeLists.txt): the table of that set's functions.
#include "attention.h"
#include "rows.h"
#ifdef FB_AMX
#include "amx.h"
#endif

namespace fusebert::FB_ISA {

#define FB_TEXT_(x) #x
#define FB_TEXT(x) FB_TEXT_(x)

template <class P>
constexpr Gemm gemm(decltype(Gemm::prepare) prepare, decltype(Gemm::soften) soften, decltype(Gemm::pack_keys) keys,
                    decltype(Gemm::pack_values) values) {
  return {P::kGroup, kPanel<P>,    kLanes, P::kRows, sizeof(typename P::Stored), sizeof(typename P::Weight), prepare,
          soften,    &multiply<P>, keys,   values};
}

extern const Kernels table;
const Kernels table = {
    FB_TEXT(FB_ISA_NAME),
    gemm<F32>(&prepare_f32, &soften<F32>, &pack_keys<F32>, &pack_values<F32>),
    gemm<Bf16>(&prepare_bf16, &soften<Bf16>, &pack_keys<Bf16>, &pack_values<Bf16>),
    gemm<S8>(&prepare_s8, nullptr, nullptr, nullptr),
    {{kFewestKeys[0], kFewestKeys[1]}, &head_room, &pack_head, &attend_rows},
    {&norm_rows<true>, &norm_rows<false>},  // FB_LAYER_NORM, FB_RMS_NORM
    &rotate,
    &gate,
    &add_terms,
    &add_near_terms,
    &quantize_weights,
};

}  // namespace fusebert::FB_ISA
