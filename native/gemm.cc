#include "gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "error.h"
#include "halves.h"

namespace fusebert {
namespace {

constexpr int64_t kLargest = int64_t{1} << 24;  // of any one size: far beyond every model, far below overflow
constexpr int64_t kLongestSum = 65536;          // inputs whose byte products surely fit 32 bits
constexpr int64_t kFewRows = 16;                // per thread; with fewer, threads share columns instead of rows

template <class T, class Convert>
void read_as(const fb_matrix& matrix, int64_t row, float* to, Convert convert) {
  const T* from = static_cast<const T*>(matrix.data) + row * matrix.row_stride;
  if (matrix.column_stride == 1)
    for (int64_t i = 0; i < matrix.columns; ++i) to[i] = convert(from[i]);
  else
    for (int64_t i = 0; i < matrix.columns; ++i) to[i] = convert(from[i * matrix.column_stride]);
}

// Panels of columns, see kernels.h; Weight is float, uint16_t (bf16) or int8_t.
template <class Weight, class Convert>
void place_column(const Gemm& gemm, void* packed, int64_t inputs, int64_t outputs, int64_t column, Convert convert) {
  const int64_t padded = round_up(inputs, gemm.group), first = column / gemm.panel * gemm.panel;
  const int64_t width = std::min<int64_t>(gemm.panel, round_up(outputs - first, gemm.vector));
  Weight* to = static_cast<Weight*>(packed) + first * padded + (column - first) * gemm.group;
  for (int64_t i = 0; i < inputs; ++i) to[i / gemm.group * width * gemm.group + i % gemm.group] = convert(i);
}

uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
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

void check_matrix(const fb_matrix& matrix, const std::string& name) {
  if (!matrix.data) throw Invalid("%s: no data", name.c_str());
  if (matrix.type < FB_F32 || matrix.type > FB_S8)
    throw Invalid("%s: unknown element type %d", name.c_str(), matrix.type);
  if (matrix.type == FB_S8 && !matrix.scales) throw Invalid("%s: 8-bit weights need scales", name.c_str());
  for (const int64_t size : {matrix.rows, matrix.columns})
    if (size < 1 || size > kLargest)
      throw Invalid("%s: size %lld is not between 1 and %lld", name.c_str(), static_cast<long long>(size),
                    static_cast<long long>(kLargest));
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

Product::Product(const Kernels& kernels, std::span<const fb_linear> parts, const fb_plan& plan, const std::string& name,
                 const Pool::Turn& turn) {
  for (const fb_linear& part : parts) {
    check_matrix(part.weight, name + " weight");
    outputs_ += part.weight.rows;
    if (part.weight.columns != parts[0].weight.columns)
      throw Invalid("%s: its parts read inputs of %lld and %lld", name.c_str(),
                    static_cast<long long>(parts[0].weight.columns), static_cast<long long>(part.weight.columns));
  }
  inputs_ = parts[0].weight.columns;
  quantized_ = plan.precision == FB_S8;
  range_ = {plan.input_min, plan.input_max};
  if (!std::isfinite(range_.low) || !std::isfinite(range_.high) || range_.low > range_.high)
    throw Invalid("%s: the input range %g to %g is not one", name.c_str(), range_.low, range_.high);
  range_ = range_.low < range_.high ? Range{std::min(range_.low, 0.0f), std::max(range_.high, 0.0f)} : range_;
  switch (plan.precision) {
    case FB_F32: gemm_ = &kernels.f32; break;
    case FB_BF16: gemm_ = &kernels.bf16; break;
    case FB_S8: gemm_ = &kernels.s8; break;
    default: throw Invalid("%s: precision %d is not FB_F32, FB_BF16 or FB_S8", name.c_str(), plan.precision);
  }
  if (quantized_ && inputs_ > kLongestSum)
    throw Invalid("%s: 8-bit products take at most %lld inputs, not %lld; use bf16", name.c_str(),
                  static_cast<long long>(kLongestSum), static_cast<long long>(inputs_));

  if (quantized_) take_input_scales(parts, name);

  const int64_t padded = round_up(outputs_, gemm_->vector);
  const int64_t bytes = packed_elements(*gemm_, inputs_, outputs_) * gemm_->weight_bytes;
  weights_ = allocate<uint8_t>(bytes);
  std::memset(weights_.get(), 0, static_cast<size_t>(bytes));
  bias_ = allocate<float>(padded);
  std::fill_n(bias_.get(), padded, 0.0f);
  if (quantized_) {
    scale_ = allocate<float>(padded);
    sum_ = allocate<int32_t>(padded);
    std::fill_n(scale_.get(), padded, 0.0f);
    std::fill_n(sum_.get(), padded, 0);
  }

  int64_t first = 0;
  for (const fb_linear& part : parts) {
    const fb_matrix& weight = part.weight;
    if (part.bias) {
      check_finite(part.bias, weight.rows, name + " bias");
      std::copy_n(part.bias, weight.rows, bias_.get() + first);
    }
    constexpr int64_t kChunk = 64;
    turn.run((weight.rows + kChunk - 1) / kChunk, [&](int64_t task, Arena& arena) {
      float* row = arena.take<float>(inputs_);
      int8_t* levels = arena.take<int8_t>(inputs_);
      for (int64_t r = task * kChunk; r < std::min(weight.rows, (task + 1) * kChunk); ++r) {
        const int64_t column = first + r;
        read_row(weight, r, row);
        if (factors_ && weight.type != FB_S8)
          for (int64_t i = 0; i < inputs_; ++i) row[i] *= part.input_scales[i];
        check_finite(row, inputs_, name + " weight row " + std::to_string(r));
        if (plan.precision == FB_F32) {
          place_column<float>(*gemm_, weights_.get(), inputs_, outputs_, column, [&](int64_t i) { return row[i]; });
        } else if (plan.precision == FB_BF16) {
          place_column<uint16_t>(*gemm_, weights_.get(), inputs_, outputs_, column,
                                 [&](int64_t i) { return bf16_bits(row[i]); });
        } else {
          if (weight.type == FB_S8) {
            for (int64_t i = 0; i < inputs_; ++i)
              levels[i] = static_cast<const int8_t*>(weight.data)[r * weight.row_stride + i * weight.column_stride];
            scale_[column] = weight.scales[r];
          } else {
            scale_[column] = kernels.quantize_weights(row, inputs_, levels);
          }
          int32_t total = 0;
          for (int64_t i = 0; i < inputs_; ++i) total += levels[i];
          sum_[column] = total;
          place_column<int8_t>(*gemm_, weights_.get(), inputs_, outputs_, column, [&](int64_t i) { return levels[i]; });
        }
      }
    });
    first += weight.rows;
  }
}

void Product::take_input_scales(std::span<const fb_linear> parts, const std::string& name) {
  const float* scales = parts[0].input_scales;
  for (const fb_linear& part : parts) {
    const bool same = part.input_scales == scales ||
                      (part.input_scales && scales && std::equal(scales, scales + inputs_, part.input_scales));
    if (!same) throw Invalid("%s: its parts have different input scales", name.c_str());
  }
  if (!scales) return;
  if (range_.low < range_.high) throw Invalid("%s: give input scales or a fixed input range, not both", name.c_str());
  factors_ = allocate<float>(inputs_);
  for (int64_t i = 0; i < inputs_; ++i) {
    factors_[i] = 1.0f / scales[i];
    if (!(scales[i] > 0) || !std::isfinite(scales[i]) || !std::isfinite(factors_[i]))
      throw Invalid("%s: input scale %lld is not positive", name.c_str(), static_cast<long long>(i));
  }
}

int64_t Product::bytes() const {
  return packed_elements(*gemm_, inputs_, outputs_) * gemm_->weight_bytes +
         round_up(outputs_, gemm_->vector) * (quantized_ ? 12 : 4);
}

void Product::multiply(const Rows& rows, int64_t first_row, int64_t count, int64_t first_panel, int64_t last_panel,
                       Arena& arena) const {
  const float* in = rows.in + first_row * rows.in_stride;
  Epilogue epilogue = rows.epilogue;
  epilogue.bias = bias_.get();
  epilogue.out += first_row * epilogue.out_stride;
  if (epilogue.residual) epilogue.residual += first_row * epilogue.residual_stride;
  const PackedWeights weights{weights_.get(), inputs_, outputs_, scale_.get(), sum_.get()};
  const int64_t padded = round_up(inputs_, gemm_->group);
  auto* data = arena.take<uint8_t>(count * padded * gemm_->input_bytes);
  auto* scale = arena.take<float>(count);
  auto* zero = arena.take<int32_t>(count);
  gemm_->prepare(in, rows.in_stride, count, inputs_, factors_.get(), range_, data, scale, zero);
  gemm_->multiply({data, scale, zero}, count, weights, first_panel, last_panel, epilogue);
}

void Product::run(const Rows& rows, const Pool::Turn& turn, const std::function<void(int64_t, int64_t)>& finish) const {
  if (rows.count == 0) return;
  const int64_t threads = turn.threads(), all = panels(*gemm_, outputs_);
  if (rows.count >= kFewRows * threads || threads == 1) {
    // Equal blocks for all threads, of whole tiles.
    const int64_t rounds = (rows.count + threads * kBlockRows - 1) / (threads * kBlockRows), tasks = rounds * threads;
    const int64_t tiles = (rows.count + gemm_->tile_rows - 1) / gemm_->tile_rows;
    const auto begin = [&](int64_t task) { return std::min(tiles * task / tasks * gemm_->tile_rows, rows.count); };
    turn.run(tasks, [&](int64_t task, Arena& arena) {
      const int64_t first = begin(task), count = begin(task + 1) - first;
      if (count == 0) return;
      multiply(rows, first, count, 0, all, arena);
      if (finish) finish(first, count);
    });
    return;
  }
  const int64_t share = (all + threads - 1) / threads;
  turn.run((all + share - 1) / share, [&](int64_t task, Arena& arena) {
    for (int64_t first = 0; first < rows.count; first += kBlockRows) {
      const Arena::Scope block(arena);
      multiply(rows, first, std::min(kBlockRows, rows.count - first), task * share, std::min(all, (task + 1) * share),
               arena);
    }
  });
  if (finish) finish(0, rows.count);
}

}  // namespace fusebert
