// LayerNorm and RMSNorm over rows.
#pragma once
#include <string>

#include "kernels.h"
#include "memory.h"

namespace fusebert {

// A norm that owns its numbers.
class Norm {
 public:
  Norm(const fb_norm* norm, int64_t width, const Kernels& kernels, const std::string& name);
  int64_t bytes() const { return 2 * width_ * static_cast<int64_t>(sizeof(float)); }
  int64_t width() const { return width_; }
  // Rows of the norm's width, without gaps. in and out may be the same.
  void apply(const float* in, float* out, int64_t rows) const;
  // Part of rows that are `stride` apart, in place.
  void apply(float* rows, int64_t stride, int64_t count) const;

 private:
  int64_t width_;
  const Kernels* kernels_;
  fb_norm norm_;
  Array<float> gain_, bias_;
};

}  // namespace fusebert
