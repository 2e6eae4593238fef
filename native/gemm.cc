#include "gemm.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "error.h"
#include "halves.h"

namespace fusebert {
namespace {

constexpr int64_t kLargest = int64_t{1} << 24;  // of any one size: far beyond every model, far below overflow
constexpr int64_t kLongestSum = 65536;          // inputs whose byte products surely fit 32 bits
constexpr int64_t kStrips = 8;                  // for each thread, so that one which is slowed down takes fewer
constexpr int64_t kOwnRows = 64;                // for each thread, from which on it pays that each reads all weights

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

bool sums_fit(const int8_t* levels, int64_t count) {
  int most = 0;
  for (int64_t first = 0; first < count; first += 8)
    for (int64_t half = 0; half < 2; ++half) {
      int above = 0, below = 0;
      for (int64_t i : {0, 1, 4, 5})
        if (const int64_t at = first + 2 * half + i; at < count) (levels[at] > 0 ? above : below) += levels[at];
      most = std::max({most, above, -below});
    }
  return most <= kSumLimit;
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
                 Arena& store, const Pool::Turn& turn) {
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

  if (quantized_) take_input_scales(parts, name, store);

  const int64_t padded = round_up(outputs_, gemm_->vector);
  const int64_t bytes = packed_elements(*gemm_, inputs_, outputs_) * gemm_->weight_bytes;
  weights_ = store.take<uint8_t>(bytes);
  std::memset(weights_, 0, static_cast<size_t>(bytes));
  bias_ = store.take<float>(padded);
  std::fill_n(bias_, padded, 0.0f);
  if (quantized_) {
    scale_ = store.take<float>(padded);
    sum_ = store.take<int32_t>(padded);
    std::fill_n(scale_, padded, 0.0f);
    std::fill_n(sum_, padded, 0);
  }

  int64_t first = 0;
  for (const fb_linear& part : parts) {
    const fb_matrix& weight = part.weight;
    if (part.bias) {
      check_finite(part.bias, weight.rows, name + " bias");
      std::copy_n(part.bias, weight.rows, bias_ + first);
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
          place_column<float>(*gemm_, weights_, inputs_, outputs_, column, [&](int64_t i) { return row[i]; });
        } else if (plan.precision == FB_BF16 && gemm_->weight_bytes == 4) {
          place_column<float>(*gemm_, weights_, inputs_, outputs_, column,
                              [&](int64_t i) { return bf16_value(bf16_bits(row[i])); });
        } else if (plan.precision == FB_BF16) {
          place_column<uint16_t>(*gemm_, weights_, inputs_, outputs_, column,
                                 [&](int64_t i) { return bf16_bits(row[i]); });
        } else {
          if (weight.type == FB_S8)
            for (int64_t i = 0; i < inputs_; ++i)
              levels[i] = static_cast<const int8_t*>(weight.data)[r * weight.row_stride + i * weight.column_stride];
          const bool ready = weight.type == FB_S8 && sums_fit(levels, inputs_);
          scale_[column] = ready ? weight.scales[r] : kernels.quantize_weights(row, inputs_, levels);
          int32_t total = 0;
          for (int64_t i = 0; i < inputs_; ++i) total += levels[i];
          sum_[column] = total;
          place_column<int8_t>(*gemm_, weights_, inputs_, outputs_, column, [&](int64_t i) { return levels[i]; });
        }
      }
    });
    first += weight.rows;
  }
}

void Product::take_input_scales(std::span<const fb_linear> parts, const std::string& name, Arena& store) {
  const float* scales = parts[0].input_scales;
  for (const fb_linear& part : parts) {
    const bool same = part.input_scales == scales ||
                      (part.input_scales && scales && std::equal(scales, scales + inputs_, part.input_scales));
    if (!same) throw Invalid("%s: its parts have different input scales", name.c_str());
  }
  if (!scales) return;
  if (range_.low < range_.high) throw Invalid("%s: give input scales or a fixed input range, not both", name.c_str());
  factors_ = store.take<float>(inputs_);
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

// Rows go through in blocks. Where there are many, a thread takes whole blocks of its own; where there are few, all
// threads share each block, so that every weight is read by one of them alone.
void Product::run(const Rows& rows, const Pool::Turn& turn, const Finish& finish) const {
  if (rows.count == 0) return;
  const Arena::Scope scope(turn.arena());
  if (turn.threads() == 1 || rows.count >= kOwnRows * turn.threads())
    run_own_blocks(rows, turn, finish);
  else
    run_shared_blocks(rows, turn, finish);
}

Product::Inputs Product::take_inputs(int64_t rows, Arena& arena) const {
  return {arena.take<uint8_t>(rows * row_bytes()), arena.take<float>(rows), arena.take<int32_t>(rows)};
}

void Product::prepare(const Rows& rows, int64_t first, int64_t count, const Inputs& to, int64_t at) const {
  gemm_->prepare(rows.in + first * rows.in_stride, rows.in_stride, count, inputs_, factors_, range_,
                 to.data + at * row_bytes(), to.scale + at, to.zero + at);
}

void Product::multiply(const Rows& rows, int64_t first, int64_t count, const Inputs& inputs, int64_t strip,
                       int64_t strips) const {
  const int64_t all = panels(*gemm_, outputs_);
  Epilogue epilogue = rows.epilogue;
  epilogue.bias = bias_;
  epilogue.out += first * epilogue.out_stride;
  if (epilogue.residual) epilogue.residual += first * epilogue.residual_stride;
  gemm_->multiply({inputs.data, quantized_ ? inputs.scale : nullptr, inputs.zero}, count,
                  {weights_, inputs_, outputs_, scale_, sum_}, all * strip / strips, all * (strip + 1) / strips,
                  epilogue);
}

// A block stays with the thread that takes it, from the preparation of its inputs to its last epilogue. A thread that
// finds no more blocks helps with the columns of the last ones, so that one which is slowed down holds up nobody.
void Product::run_own_blocks(const Rows& rows, const Pool::Turn& turn, const Finish& finish) const {
  const int64_t threads = turn.threads(), strips = threads == 1 ? 1 : std::min(panels(*gemm_, outputs_), kStrips);
  const int64_t tiles = (rows.count + gemm_->tile_rows - 1) / gemm_->tile_rows, most = kBlockRows / gemm_->tile_rows;
  const int64_t blocks = round_up((tiles + most - 1) / most, threads);  // as many for each thread
  const auto begin = [&](int64_t block) { return std::min(tiles * block / blocks * gemm_->tile_rows, rows.count); };

  struct alignas(64) Block {
    std::atomic<int64_t> next, multiplied{0};  // strips
    Inputs inputs{};
  };
  Block* const state = turn.arena().take<Block>(blocks);
  std::uninitialized_default_construct_n(state, blocks);
  for (int64_t i = 0; i < blocks; ++i) state[i].next = strips;  // nothing to take before it is prepared

  const auto help = [&](int64_t number) {
    Block& block = state[number];
    for (int64_t strip; (strip = block.next.fetch_add(1, std::memory_order_acq_rel)) < strips;) {
      multiply(rows, begin(number), begin(number + 1) - begin(number), block.inputs, strip, strips);
      block.multiplied.fetch_add(1, std::memory_order_release);
    }
  };
  const auto own = [&](int64_t number, Arena& arena) {
    Block& block = state[number];
    const int64_t first = begin(number), count = begin(number + 1) - first;
    block.inputs = take_inputs(count, arena);
    prepare(rows, first, count, block.inputs, 0);
    block.next.store(0, std::memory_order_release);
    help(number);
    wait_until([&] { return block.multiplied.load(std::memory_order_acquire) == strips; });
    if (finish) finish(first, count);
  };
  turn.run(blocks + threads,
           [&](int64_t task, Arena& arena) { task < blocks ? own(task, arena) : help(task - threads); });
}

// A block is prepared in shares, multiplied in strips of columns, and finished in shares. Threads take these tasks in
// order, and a task waits for those it needs, which were taken before: no thread rests for longer than a task takes.
void Product::run_shared_blocks(const Rows& rows, const Pool::Turn& turn, const Finish& finish) const {
  const int64_t shares = turn.threads(), strips = std::min(panels(*gemm_, outputs_), kStrips * shares);
  const int64_t tiles = (rows.count + gemm_->tile_rows - 1) / gemm_->tile_rows;
  const int64_t most = kBlockRows / gemm_->tile_rows, blocks = (tiles + most - 1) / most;
  const auto begin = [&](int64_t block, int64_t share) {
    return std::min(tiles * (block * shares + share) / (blocks * shares) * gemm_->tile_rows, rows.count);
  };

  struct Block {
    std::atomic<int64_t> prepared{0}, multiplied{0};  // shares, strips
  };
  Block* const state = turn.arena().take<Block>(blocks);
  std::uninitialized_default_construct_n(state, blocks);
  // A block is prepared while the one before it is still being multiplied.
  const Inputs places[2] = {take_inputs(kBlockRows, turn.arena()), take_inputs(kBlockRows, turn.arena())};

  const auto prepare_share = [&](int64_t block, int64_t share) {
    if (block >= 2) wait_until([&] { return state[block - 2].multiplied.load(std::memory_order_acquire) == strips; });
    const int64_t first = begin(block, share);
    prepare(rows, first, begin(block, share + 1) - first, places[block % 2], first - begin(block, 0));
    state[block].prepared.fetch_add(1, std::memory_order_release);
  };
  const auto multiply_strip = [&](int64_t block, int64_t strip) {
    wait_until([&] { return state[block].prepared.load(std::memory_order_acquire) == shares; });
    multiply(rows, begin(block, 0), begin(block + 1, 0) - begin(block, 0), places[block % 2], strip, strips);
    state[block].multiplied.fetch_add(1, std::memory_order_release);
  };
  const auto finish_share = [&](int64_t block, int64_t share) {
    wait_until([&] { return state[block].multiplied.load(std::memory_order_acquire) == strips; });
    finish(begin(block, share), begin(block, share + 1) - begin(block, share));
  };

  // A block is finished when the next is prepared, so that nobody waits for its last strips.
  const int64_t tasks = shares + shares + strips;
  turn.run((blocks + 1) * tasks, [&](int64_t task, Arena&) {
    const int64_t block = task / tasks, number = task % tasks;
    if (number >= 2 * shares) {
      if (block < blocks) multiply_strip(block, number - 2 * shares);
    } else if (number < shares) {
      if (block < blocks) prepare_share(block, number);
    } else if (block > 0 && finish) {
      finish_share(block - 1, number - shares);
    }
  });
}

}  // namespace fusebert
