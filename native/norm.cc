#include "norm.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "matrix.h"
#include "sized.h"

namespace fusebert {

Norm::Norm(const fb_norm* norm, int64_t width, const Kernels& kernels, const std::string& name)
    : width_(width), kernels_(&kernels), norm_(sized(norm, name)) {
  if (!fb_norm_name(norm_.kind)) throw Invalid("%s: unknown kind %d of norm", name.c_str(), norm_.kind);
  if (!(norm_.epsilon >= 0) || !std::isfinite(norm_.epsilon))
    throw Invalid("%s: epsilon is %g; it must be finite and not negative", name.c_str(), norm_.epsilon);
  const auto copy = [&](const float* from, float missing, const char* part) {
    auto to = allocate<float>(width);
    if (from)
      std::copy_n(from, width, to.get());
    else
      std::fill_n(to.get(), width, missing);
    check_finite(to.get(), width, name + " " + part);
    return to;
  };
  gain_ = copy(norm_.gain, 1, "gain"), norm_.gain = gain_.get();
  bias_ = copy(norm_.bias, 0, "bias"), norm_.bias = bias_.get();
}

void Norm::apply(const float* in, float* out, int64_t rows) const {
  kernels_->norm[norm_.kind](in, width_, out, width_, rows, width_, norm_);
}

void Norm::apply(float* rows, int64_t stride, int64_t count) const {
  kernels_->norm[norm_.kind](rows, stride, rows, stride, count, width_, norm_);
}

}  // namespace fusebert
