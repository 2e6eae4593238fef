// One product by itself, for the parts around the encoder: y = norm(activation(x * W^T + b)).
#pragma once
#include <optional>

#include "gemm.h"
#include "norm.h"

namespace fusebert {

class Dense {
 public:
  Dense(const fb_dense_spec& spec, const Pool::Turn& turn);
  int64_t bytes() const { return product_.bytes(); }
  void run(const float* input, int64_t rows, float* output, const Pool::Turn& turn) const;

 private:
  Arena store_{0};
  Product product_;
  std::optional<Norm> norm_;
  int32_t activation_;
};

}  // namespace fusebert
