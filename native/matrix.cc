#include "matrix.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "halves.h"
#include "sized.h"

namespace fusebert {
namespace {

constexpr int64_t kLargest = int64_t{1} << 24;  // of any one size: far beyond every model, far below overflow

// convert(number, row) of some rows. Where the numbers of a row lie apart, those of its neighbours lie beside them: a
// square of both is read before the cache has lost its lines.
template <class T, class Convert>
void read_as(const fb_matrix& matrix, int64_t first, int64_t count, float* to, Convert convert) {
  const T* const from = static_cast<const T*>(matrix.data);
  const int64_t width = matrix.columns, across = matrix.column_stride == 1 ? width : kReadRows;
  for (int64_t column = 0; column < width; column += across)
    for (int64_t row = 0; row < count; row += kReadRows)
      for (int64_t r = row; r < std::min(row + kReadRows, count); ++r) {
        const T* const own = from + (first + r) * matrix.row_stride;
        const int64_t end = std::min(column + across, width);
        if (matrix.column_stride == 1)
          for (int64_t i = column; i < end; ++i) to[r * width + i] = convert(own[i], first + r);
        else
          for (int64_t i = column; i < end; ++i) to[r * width + i] = convert(own[i * matrix.column_stride], first + r);
      }
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

void read_rows(const fb_matrix& matrix, int64_t first, int64_t count, float* to) {
  switch (matrix.type) {
    case FB_F32: return read_as<float>(matrix, first, count, to, [](float x, int64_t) { return x; });
    case FB_BF16: return read_as<uint16_t>(matrix, first, count, to, [](uint16_t x, int64_t) { return bf16_value(x); });
    case FB_F16: return read_as<uint16_t>(matrix, first, count, to, [](uint16_t x, int64_t) { return half_value(x); });
    default:
      return read_as<int8_t>(matrix, first, count, to,
                             [&](int8_t x, int64_t row) { return static_cast<float>(x) * matrix.scales[row]; });
  }
}

Linear::Linear(const fb_linear* linear, const std::string& name)
    : fb_linear(sized(linear, name)), matrix(checked(weight, name + " weight")) {}

}  // namespace fusebert
