#include "matrix.h"

#include <cmath>

#include "error.h"
#include "halves.h"
#include "sized.h"

namespace fusebert {
namespace {

constexpr int64_t kLargest = int64_t{1} << 24;  // of any one size: far beyond every model, far below overflow

template <class T, class Convert>
void read_as(const fb_matrix& matrix, int64_t row, float* to, Convert convert) {
  const T* from = static_cast<const T*>(matrix.data) + row * matrix.row_stride;
  if (matrix.column_stride == 1)
    for (int64_t i = 0; i < matrix.columns; ++i) to[i] = convert(from[i]);
  else
    for (int64_t i = 0; i < matrix.columns; ++i) to[i] = convert(from[i * matrix.column_stride]);
}

}  // namespace

void check_finite(const float* values, int64_t count, const std::string& name) {
  float sum = 0;  // of zeros, unless something is broken: quick to compute for the common case
  for (int64_t i = 0; i < count; ++i) sum += values[i] * 0.0f;
  if (sum == 0.0f) return;
  for (int64_t i = 0; i < count; ++i)
    if (!std::isfinite(values[i]))
      throw Invalid("%s: value %lld is not finite", name.c_str(), static_cast<long long>(i));
}

fb_matrix checked(const fb_matrix* given, const std::string& name) {
  const fb_matrix matrix = sized(given, name);
  if (!matrix.data) throw Invalid("%s: no data", name.c_str());
  if (!fb_type_name(matrix.type)) throw Invalid("%s: unknown element type %d", name.c_str(), matrix.type);
  if (matrix.type == FB_S8 && !matrix.scales) throw Invalid("%s: 8-bit weights need scales", name.c_str());
  for (const int64_t size : {matrix.rows, matrix.columns})
    if (size < 1 || size > kLargest)
      throw Invalid("%s: size %lld is not between 1 and %lld", name.c_str(), static_cast<long long>(size),
                    static_cast<long long>(kLargest));
  return matrix;
}

void read_row(const fb_matrix& matrix, int64_t row, float* to) {
  switch (matrix.type) {
    case FB_F32: return read_as<float>(matrix, row, to, [](float x) { return x; });
    case FB_BF16: return read_as<uint16_t>(matrix, row, to, bf16_value);
    case FB_F16: return read_as<uint16_t>(matrix, row, to, half_value);
    default: {
      const float scale = matrix.scales[row];
      return read_as<int8_t>(matrix, row, to, [scale](int8_t x) { return static_cast<float>(x) * scale; });
    }
  }
}

Linear::Linear(const fb_linear* linear, const std::string& name)
    : fb_linear(sized(linear, name)), matrix(checked(weight, name + " weight")) {}

}  // namespace fusebert
