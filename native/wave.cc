#include "wave.h"

#include <algorithm>
#include <numeric>

namespace fusebert {
namespace {

enum Step { kQkv, kAttention, kAttentionOut, kFfnIn, kFfnOut };  // as fb_step_name has them

}  // namespace

Wave::Wave(const Encoder& encoder, const fb_run& run, const Pool::Turn& turn, int64_t first, int64_t last)
    : encoder_(encoder),
      run_(run),
      turn_(turn),
      scope_(turn.arena()),
      first_row_(run.offsets[first]),
      rows_(run.offsets[last] - first_row_) {
  int64_t inner = 0, context = 0;
  for (const Block& block : encoder.blocks()) {
    inner = std::max(inner, block.body.in.outputs());
    if (block.body.attention) context = std::max(context, block.body.out.inputs());
  }
  bool normed = false;
  for (size_t place = 0; place <= encoder.places(); ++place) normed |= encoder.norm_before(place) != nullptr;
  Arena& arena = turn.arena();
  x_ = arena.take<float>(rows_ * encoder.hidden());
  sum_ = arena.take<float>(rows_ * encoder.hidden());
  inner_ = arena.take<float>(rows_ * inner);
  context_ = arena.take<float>(rows_ * context);
  if (normed) normed_ = arena.take<float>(rows_ * encoder.hidden());
  for (int64_t i = first; i < last; ++i) sequences_.push_back(sequence(i));
}

void Wave::run() {
  copy_in();
  if (const Norm* norm = encoder_.norm_before(0)) norm->apply(x_, normed_, rows_);
  for (size_t place = 0; place < encoder_.places(); ++place) {
    run_block(place);
    const int32_t* const tap = std::find(run_.taps, run_.taps + run_.tap_count, static_cast<int32_t>(place));
    const auto number = tap - run_.taps;
    if (number < run_.tap_count && run_.states[number]) copy_out(x_, run_.states[number]);
  }
  copy_out(encoder_.norm_before(encoder_.places()) ? normed_ : x_, run_.output);
}

// x = after(x + branch(body(before(x)))). The body's second product adds x itself, unless the branch has a norm; what
// is left to do is done to rows that are complete, while they are in cache.
void Wave::run_block(size_t place) {
  const Block& block = encoder_.at(place);
  const auto& [in, out, attention, activation] = block.body;
  const int64_t hidden = encoder_.hidden();
  run_product(attention ? kQkv : kFfnIn, place, 0, in,
              {block.before ? normed_ : x_, hidden, rows_, {inner_, in.outputs(), nullptr, activation}}, {});
  if (attention) attend_all(*attention);

  Epilogue epilogue{block.branch || block.after ? sum_ : x_, hidden};
  if (!block.branch) epilogue.residual = x_, epilogue.residual_stride = hidden;
  const bool settled = !block.branch && !block.after && !encoder_.norm_before(place + 1);
  run_product(
      attention ? kAttentionOut : kFfnOut, place, 1, out,
      {attention ? context_ : inner_, out.inputs(), rows_, epilogue},
      settled ? Product::Finish() : [&](int64_t first, int64_t count) { settle(place, first, count); });
}

// Complete rows of a block's last product -> x, and x as the next block reads it.
void Wave::settle(size_t place, int64_t first, int64_t count) {
  const Block& block = encoder_.at(place);
  const int64_t at = first * encoder_.hidden(), size = count * encoder_.hidden();
  float *x = x_ + at, *sum = sum_ + at;
  if (block.branch) {
    block.branch->apply(sum, sum, count);
    float* to = block.after ? sum : x;
    for (int64_t i = 0; i < size; ++i) to[i] = x[i] + sum[i];
  }
  if (block.after) block.after->apply(sum, x, count);
  if (const Norm* next = encoder_.norm_before(place + 1)) next->apply(x, normed_ + at, count);
}

Sequence Wave::sequence(int64_t number) const {
  const int64_t begin = run_.offsets[number], rows = run_.offsets[number + 1] - begin;
  Sequence sequence{
      begin - first_row_, rows, {}, false, run_.bias ? run_.bias + number * run_.bias_stride[0] : nullptr};
  for (int64_t r = 0; r < rows; ++r)
    if (!run_.visible || run_.visible[begin + r]) sequence.keys.push_back(r);
  if (sequence.keys.empty()) {
    sequence.uniform = true;
    sequence.keys.resize(static_cast<size_t>(rows));
    std::iota(sequence.keys.begin(), sequence.keys.end(), 0);
  }
  return sequence;
}

void Wave::run_product(int step, size_t place, int32_t number, const Product& product, const Rows& rows,
                       const Product::Finish& finish) {
  if (run_.observer)
    run_.observer->rows(run_.observer->user, static_cast<int32_t>(place), number, rows.in, rows.count,
                        product.inputs());
  const auto start = Clock::now();
  product.run(rows, turn_, finish);
  note(step, start);
}

void Wave::attend_all(const AttentionShape& given) {
  const auto start = Clock::now();
  AttentionShape shape = given;
  std::copy_n(run_.bias_stride, 4, shape.bias_stride);
  attend(encoder_.kernels(), shape, sequences_, inner_, context_, turn_);
  note(kAttention, start);
}

void Wave::note(int step, Clock::time_point start) {
  if (run_.profile) run_.profile->seconds[step] += std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t Wave::stored(int64_t row) const { return run_.index ? run_.index[first_row_ + row] : first_row_ + row; }

void Wave::copy_in() const {
  const int64_t hidden = encoder_.hidden();
  for (int64_t r = 0; r < rows_; ++r) std::copy_n(run_.input + stored(r) * hidden, hidden, x_ + r * hidden);
}

void Wave::copy_out(const float* rows, float* to) const {
  const int64_t hidden = encoder_.hidden();
  for (int64_t r = 0; r < rows_; ++r) std::copy_n(rows + r * hidden, hidden, to + stored(r) * hidden);
}

}  // namespace fusebert
