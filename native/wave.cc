#include "wave.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "error.h"

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
  take_angles();
}

void Wave::run() {
  copy_in();
  if (const Norm* norm = encoder_.norm_before(0)) norm->apply(x_, normed_, rows_);
  for (size_t place = 0; place < encoder_.places(); ++place) {
    if (run_.stop && run_.stop(run_.stop_user)) throw Invalid("the call was stopped");
    run_block(place);
    const int32_t* const tap = std::find(run_.taps, run_.taps + run_.tap_count, static_cast<int32_t>(place));
    const auto number = tap - run_.taps;
    if (number < run_.tap_count && run_.states[number]) copy_out(x_, run_.states[number]);
  }
  copy_out(encoder_.norm_before(encoder_.places()) ? normed_ : x_, run_.output);
}

// x = after(x + branch(body(before(x)))). The body's second product adds x itself, unless a norm comes between; what
// is left to do is done to rows that are complete, while they are in cache.
void Wave::run_block(size_t place) {
  const Block& block = encoder_.at(place);
  const Body& body = block.body;
  const auto& [in, out, attention] = std::tie(body.in, body.out, body.attention);
  const int64_t hidden = encoder_.hidden();
  const auto ready = [&](int64_t first, int64_t count) {
    const auto angles = attention ? angles_.find(attention->position) : angles_.end();
    body.ready(encoder_.kernels(), inner_ + first * in.outputs(), count,
               angles == angles_.end() ? nullptr : angles->second + first);
  };
  run_product(attention ? kQkv : kFfnIn, place, 0, in,
              {block.before ? normed_ : x_,
               hidden,
               rows_,
               {inner_, in.outputs(), nullptr, body.gated ? FB_IDENTITY : body.activation}},
              body.has_readying() ? Product::Finish(ready) : Product::Finish());
  if (attention) attend_all(*attention);

  Epilogue epilogue{block.branch || block.after ? sum_ : x_, hidden};
  if (!block.branch || block.adds_twice) epilogue.residual = x_, epilogue.residual_stride = hidden;
  const bool settled = !block.branch && !block.after && !encoder_.norm_before(place + 1);
  run_product(
      attention ? kAttentionOut : kFfnOut, place, 1, out,
      {attention ? context_ : inner_, attention ? out.inputs() : in.outputs(), rows_, epilogue},
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
      begin - first_row_, rows, {}, false, run_.bias ? run_.bias + number * run_.bias_stride[0] : nullptr, {}};
  for (int64_t r = 0; r < rows; ++r)
    if (!run_.visible || run_.visible[begin + r]) sequence.keys.push_back(r);
  if (sequence.keys.empty()) {
    sequence.uniform = true;
    sequence.keys.resize(static_cast<size_t>(rows));
    std::iota(sequence.keys.begin(), sequence.keys.end(), 0);
  }
  if (rows && encoder_.needs_places()) sequence.places = places(begin, rows, sequence);
  return sequence;
}

Places Wave::places(int64_t begin, int64_t rows, const Sequence& sequence) const {
  Places places;
  const auto given = [&](int64_t row) { return run_.positions ? run_.positions[begin + row] : row; };
  const int64_t origin = given(sequence.keys[0]);
  for (int64_t r = 0; r < rows; ++r) places.rows.push_back(static_cast<int32_t>(given(r) - origin));
  for (const int64_t key : sequence.keys) places.keys.push_back(places.rows[static_cast<size_t>(key)]);
  const auto whole = [](const std::vector<int32_t>& some) {
    return some.back() - int64_t{some.front()} == static_cast<int64_t>(some.size()) - 1;
  };
  places.contiguous = whole(places.rows) && whole(places.keys);
  return places;
}

// Cosines and sines of every position that occurs, once for all blocks that turn their heads by it.
void Wave::take_angles() {
  for (const Position& position : encoder_.positions().all()) {
    if (position.kind != FB_ROTARY) continue;
    std::vector<int32_t> occurring;
    for (const Sequence& sequence : sequences_)
      occurring.insert(occurring.end(), sequence.places.rows.begin(), sequence.places.rows.end());
    std::sort(occurring.begin(), occurring.end());
    occurring.erase(std::unique(occurring.begin(), occurring.end()), occurring.end());
    const auto half = static_cast<int64_t>(position.numbers.size()), count = static_cast<int64_t>(occurring.size());
    float* const angles = turn_.arena().take<float>(count * 2 * half);
    turn_.run(count, [&](int64_t i, Arena&) {
      for (int64_t k = 0; k < half; ++k) {
        const float angle =
            static_cast<float>(occurring[static_cast<size_t>(i)]) * position.numbers[static_cast<size_t>(k)];
        angles[(2 * i) * half + k] = std::cos(angle), angles[(2 * i + 1) * half + k] = std::sin(angle);
      }
    });
    const float** of_rows = turn_.arena().take<const float*>(rows_);
    for (const Sequence& sequence : sequences_)
      for (int64_t r = 0; r < sequence.rows; ++r) {
        const int32_t place = sequence.places.rows[static_cast<size_t>(r)];
        const auto found = std::lower_bound(occurring.begin(), occurring.end(), place) - occurring.begin();
        of_rows[sequence.first + r] = angles + found * 2 * half;
      }
    angles_.emplace(&position, of_rows);
  }
}

void Wave::run_product(int step, size_t place, int32_t number, const Product& product, const Rows& rows,
                       const Product::Finish& finish) {
  if (run_.observer) {
    std::vector<float> whole;  // without gaps
    for (int64_t r = 0; r < rows.count; ++r)
      whole.insert(whole.end(), rows.in + r * rows.in_stride, rows.in + r * rows.in_stride + product.inputs());
    run_.observer->rows(run_.observer->user, static_cast<int32_t>(place), number, whole.data(), rows.count,
                        product.inputs());
  }
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
