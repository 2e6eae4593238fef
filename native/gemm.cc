#include "gemm.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "error.h"
#include "halves.h"
#include "levels.h"

namespace fusebert {
namespace {

constexpr int64_t kLongestSum = 65536;  // inputs whose byte products surely fit 32 bits

// Panels of columns, see kernels.h; Weight is float, uint16_t (bf16) or int8_t.
template <class Weight, class Convert>
void place_column(const Gemm& gemm, void* packed, int64_t inputs, int64_t outputs, int64_t column, Convert convert) {
  const int64_t padded = round_up(inputs, gemm.group), first = column / gemm.panel * gemm.panel;
  const int64_t width = std::min<int64_t>(gemm.panel, round_up(outputs - first, gemm.vector));
  Weight* to = static_cast<Weight*>(packed) + first * padded + (column - first) * gemm.group;
  for (int64_t begin = 0; begin < inputs; begin += gemm.group, to += width * gemm.group)
    for (int64_t i = begin; i < std::min(inputs, begin + gemm.group); ++i) to[i - begin] = convert(i);
}

uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace

Product::Product(const Kernels& kernels, std::span<const Linear> parts, const std::string& name, Arena& store,
                 const Pool::Turn& turn)
    : inputs_(parts[0].matrix.columns), quantized_(parts[0].precision == FB_S8) {
  switch (parts[0].precision) {
    case FB_F32: gemm_ = &kernels.f32; break;
    case FB_BF16: gemm_ = &kernels.bf16; break;
    case FB_S8: gemm_ = &kernels.s8; break;
    default: throw Invalid("%s: precision %d is not FB_F32, FB_BF16 or FB_S8", name.c_str(), parts[0].precision);
  }
  check_agreement(parts, name);
  for (const Linear& part : parts) outputs_ += part.matrix.rows;
  if (quantized_ && inputs_ > kLongestSum)
    throw Invalid("%s: 8-bit products take at most %lld inputs, not %lld; use bf16", name.c_str(),
                  static_cast<long long>(kLongestSum), static_cast<long long>(inputs_));
  take_range(parts[0], name);
  if (quantized_ && parts[0].input_scales) take_input_scales(parts[0].input_scales, name, store);

  const int64_t padded = round_up(outputs_, gemm_->vector);
  const int64_t bytes = packed_elements(*gemm_, inputs_, outputs_) * gemm_->weight_bytes;
  weights_ = store.take<uint8_t>(bytes);
  std::memset(weights_, 0, static_cast<size_t>(bytes));
  bias_ = store.take<float>(padded);
  std::fill_n(bias_, padded, 0.0f);
  if (quantized_) {
    scale_ = store.take<float>(padded);
    origin_ = store.take<int32_t>(padded);
    std::fill_n(scale_, padded, 0.0f);
    std::fill_n(origin_, padded, 0);
  }
  int64_t first = 0;
  for (const Linear& part : parts) {
    pack(kernels, part, first, name, turn);
    first += part.matrix.rows;
  }
}

// Parts that lie side by side are one product of one input.
void Product::check_agreement(std::span<const Linear> parts, const std::string& name) const {
  const Linear& first = parts[0];
  const auto same_scales = [&](const float* scales) {
    return scales == first.input_scales ||
           (scales && first.input_scales && std::equal(scales, scales + inputs_, first.input_scales));
  };
  for (const Linear& part : parts) {
    if (part.matrix.columns != inputs_)
      throw Invalid("%s: its parts read inputs of %lld and %lld", name.c_str(), static_cast<long long>(inputs_),
                    static_cast<long long>(part.matrix.columns));
    if (part.precision != first.precision) throw Invalid("%s: its parts have different precisions", name.c_str());
    if (!quantized_) continue;
    if (part.low != first.low || part.high != first.high)
      throw Invalid("%s: its parts have different input ranges", name.c_str());
    if (!same_scales(part.input_scales)) throw Invalid("%s: its parts have different input scales", name.c_str());
  }
}

void Product::take_range(const Linear& part, const std::string& name) {
  const auto [low, high] = std::pair(part.low, part.high);
  if (!std::isfinite(low) || !std::isfinite(high) || low > high)
    throw Invalid("%s: the input range is %g to %g; both must be finite, the first the lower one", name.c_str(), low,
                  high);
  range_ = low < high ? Range{std::min(low, 0.0f), std::max(high, 0.0f)} : Range{low, high};
}

void Product::take_input_scales(const float* scales, const std::string& name, Arena& store) {
  if (range_.low < range_.high) throw Invalid("%s: give input scales or a fixed input range, not both", name.c_str());
  factors_ = store.take<float>(inputs_);
  for (int64_t i = 0; i < inputs_; ++i) {
    factors_[i] = 1.0f / scales[i];
    if (!(scales[i] > 0) || !std::isfinite(scales[i]) || !std::isfinite(factors_[i]))
      throw Invalid("%s: input scale %lld is not positive", name.c_str(), static_cast<long long>(i));
  }
}

// One part, in the columns from `first` on.
void Product::pack(const Kernels& kernels, const Linear& part, int64_t first, const std::string& name,
                   const Pool::Turn& turn) {
  const fb_matrix& weight = part.matrix;
  if (part.bias) {
    check_finite(part.bias, weight.rows, name + " bias");
    std::copy_n(part.bias, weight.rows, bias_ + first);
  }
  const bool in_levels = part.precision == FB_S8 && weight.type == FB_S8;
  turn.run((weight.rows + kReadRows - 1) / kReadRows, [&](int64_t task, Arena& arena) {
    const int64_t begin = task * kReadRows, count = std::min(kReadRows, weight.rows - begin);
    float* rows = arena.take<float>(count * inputs_);
    int8_t* levels = arena.take<int8_t>(inputs_);
    if (!in_levels) read_rows(weight, begin, count, rows);
    for (int64_t r = begin; r < begin + count; ++r) {
      const int64_t column = first + r;
      float* const row = rows + (r - begin) * inputs_;
      if (in_levels && take_levels(weight, r, levels)) {
        const float largest = 127 * weight.scales[r];
        check_finite(&largest, 1, name + " weight row " + std::to_string(r));
        place_levels(levels, column, weight.scales[r]);
        continue;
      }
      if (in_levels) read_rows(weight, r, 1, row);
      if (factors_ && weight.type != FB_S8)
        for (int64_t i = 0; i < inputs_; ++i) row[i] *= part.input_scales[i];
      check_finite(row, inputs_, name + " weight row " + std::to_string(r));
      if (part.precision == FB_F32) {
        place_column<float>(*gemm_, weights_, inputs_, outputs_, column, [&](int64_t i) { return row[i]; });
      } else if (part.precision == FB_BF16 && gemm_->weight_bytes == 4) {
        place_column<float>(*gemm_, weights_, inputs_, outputs_, column,
                            [&](int64_t i) { return bf16_value(bf16_bits(row[i])); });
      } else if (part.precision == FB_BF16) {
        place_column<uint16_t>(*gemm_, weights_, inputs_, outputs_, column,
                               [&](int64_t i) { return bf16_bits(row[i]); });
      } else {
        const float scale = kernels.quantize_weights(row, inputs_, levels);
        place_levels(levels, column, scale);
      }
    }
  });
}

// A row that is in 8 bits already, if its sums fit as they are.
bool Product::take_levels(const fb_matrix& weight, int64_t row, int8_t* levels) const {
  const int8_t* from = static_cast<const int8_t*>(weight.data) + row * weight.row_stride;
  if (weight.column_stride == 1)
    std::copy_n(from, inputs_, levels);
  else
    for (int64_t i = 0; i < inputs_; ++i) levels[i] = from[i * weight.column_stride];
  return sums_fit(levels, inputs_);
}

void Product::place_levels(const int8_t* levels, int64_t column, float scale) {
  scale_[column] = scale;
  origin_[column] = sum_pair(-std::accumulate(levels, levels + inputs_, int32_t{0}));
  place_column<int8_t>(*gemm_, weights_, inputs_, outputs_, column, [&](int64_t i) { return levels[i]; });
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
  const Cut cut = fusebert::cut(rows.count, gemm_->tile_rows, panels(*gemm_, outputs_), turn.threads());
  if (cut.own)
    run_own_blocks(rows, cut, turn, finish);
  else
    run_shared_blocks(rows, cut, turn, finish);
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
                  {weights_, inputs_, outputs_, scale_, origin_}, all * strip / strips, all * (strip + 1) / strips,
                  epilogue);
}

// A block stays with the thread that takes it, from the preparation of its inputs to its last epilogue. A thread that
// finds no more blocks helps with the columns of the last ones, so that one which is slowed down holds up nobody.
void Product::run_own_blocks(const Rows& rows, const Cut& cut, const Pool::Turn& turn, const Finish& finish) const {
  const int64_t threads = turn.threads(), strips = cut.strips, blocks = cut.blocks;
  const int64_t tiles = (rows.count + gemm_->tile_rows - 1) / gemm_->tile_rows;
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
void Product::run_shared_blocks(const Rows& rows, const Cut& cut, const Pool::Turn& turn, const Finish& finish) const {
  const int64_t shares = cut.shares, strips = cut.strips, blocks = cut.blocks, places = cut.places;
  const int64_t tiles = (rows.count + gemm_->tile_rows - 1) / gemm_->tile_rows;
  const auto begin = [&](int64_t block, int64_t share) {
    return std::min(tiles * (block * shares + share) / (blocks * shares) * gemm_->tile_rows, rows.count);
  };

  struct Block {
    std::atomic<int64_t> prepared{0}, multiplied{0};  // shares, strips
  };
  Block* const state = turn.arena().take<Block>(blocks);
  std::uninitialized_default_construct_n(state, blocks);
  // Blocks are prepared while those before them are still being multiplied.
  Inputs* const inputs = turn.arena().take<Inputs>(places);
  for (int64_t i = 0; i < places; ++i) inputs[i] = take_inputs(kBlockRows, turn.arena());

  const auto prepare_share = [&](int64_t block, int64_t share) {
    if (block >= places)
      wait_until([&] { return state[block - places].multiplied.load(std::memory_order_acquire) == strips; });
    const int64_t first = begin(block, share);
    prepare(rows, first, begin(block, share + 1) - first, inputs[block % places], first - begin(block, 0));
    state[block].prepared.fetch_add(1, std::memory_order_release);
  };
  const auto multiply_strip = [&](int64_t block, int64_t strip) {
    wait_until([&] { return state[block].prepared.load(std::memory_order_acquire) == shares; });
    multiply(rows, begin(block, 0), begin(block + 1, 0) - begin(block, 0), inputs[block % places], strip, strips);
    state[block].multiplied.fetch_add(1, std::memory_order_release);
  };
  const auto finish_share = [&](int64_t block, int64_t share) {
    wait_until([&] { return state[block].multiplied.load(std::memory_order_acquire) == strips; });
    finish(begin(block, share), begin(block, share + 1) - begin(block, share));
  };

  // A block is finished when a later one is prepared, so that nobody waits for its last strips.
  const int64_t tasks = shares + shares + strips, later = cut.later();
  turn.run((blocks + later) * tasks, [&](int64_t task, Arena&) {
    const int64_t block = task / tasks, number = task % tasks;
    if (number >= 2 * shares) {
      if (block < blocks) multiply_strip(block, number - 2 * shares);
    } else if (number < shares) {
      if (block < blocks) prepare_share(block, number);
    } else if (block >= later && finish) {
      finish_share(block - later, number - shares);
    }
  });
}

}  // namespace fusebert
