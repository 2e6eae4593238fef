#include "dense.h"

#include "error.h"

namespace fusebert {
namespace {

Product packed(const fb_linear* given, Arena& store, const Pool::Turn& turn) {
  const Linear linear(given, "dense");
  return Product(kernels(), {&linear, 1}, "dense", store, turn);
}

}  // namespace

Dense::Dense(const fb_dense_spec& spec, const Pool::Turn& turn)
    : product_(packed(spec.linear, store_, turn)), activation_(spec.activation) {
  if (!fb_activation_name(activation_)) throw Invalid("dense: unknown activation %d", activation_);
  if (spec.norm) norm_.emplace(spec.norm, product_.outputs(), kernels(), "dense norm");
}

void Dense::run(const float* input, int64_t rows, float* output, const Pool::Turn& turn) const {
  const int64_t width = product_.outputs();
  const auto normalize = [&](int64_t first, int64_t count) {
    norm_->apply(output + first * width, output + first * width, count);
  };
  product_.run({input, product_.inputs(), rows, {output, width, nullptr, activation_}}, turn,
               norm_ ? Product::Finish(normalize) : Product::Finish());
}

}  // namespace fusebert
