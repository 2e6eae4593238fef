#include "encoder.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "cut.h"
#include "error.h"
#include "wave.h"

namespace fusebert {
namespace {

// FUSEBERT_WAVE_ROWS, or 0 where it is not set: as many as suit the threads of a call (cut.h).
int64_t given_wave_rows() {
  const char* given = std::getenv("FUSEBERT_WAVE_ROWS");
  if (!given || !*given) return 0;
  char* end = nullptr;
  const long long rows = std::strtoll(given, &end, 10);
  if (*end || rows < 1) throw Invalid("FUSEBERT_WAVE_ROWS=%.40s: 1 or more is expected", given);
  return rows;
}

constexpr int64_t kLargestRows = int64_t{1} << 40;

std::vector<size_t> order_of(const fb_encoder_spec& spec) {
  std::vector<size_t> order(static_cast<size_t>(spec.order ? spec.order_count : spec.block_count));
  std::iota(order.begin(), order.end(), 0);
  for (int32_t i = 0; spec.order && i < spec.order_count; ++i) {
    if (spec.order[i] < 0 || spec.order[i] >= spec.block_count)
      throw Invalid("order: number %d names block %d of %d", i, spec.order[i], spec.block_count);
    order[static_cast<size_t>(i)] = static_cast<size_t>(spec.order[i]);
  }
  return order;
}

}  // namespace

Encoder::Encoder(const fb_encoder_spec& spec, const Pool::Turn& turn)
    : kernels_(fusebert::kernels()),
      wave_rows_(given_wave_rows()),
      hidden_(spec.hidden),
      // About what the floats of all blocks take, but no more than some: what is not used of it costs nothing.
      store_(static_cast<int64_t>(std::clamp(24.0 * spec.hidden * spec.hidden * spec.block_count, 0.0, 33554432.0))) {
  if (spec.hidden < 1) throw Invalid("hidden size %d; at least 1 is needed", spec.hidden);
  if (spec.block_count < 0 || (spec.block_count > 0 && !spec.blocks)) throw Invalid("blocks are missing");
  if (spec.order_count < 0 || (spec.order_count > 0 && !spec.order)) throw Invalid("order is missing");
  order_ = order_of(spec);
  for (int32_t i = 0; i < spec.block_count; ++i) {
    const std::string name = "block " + std::to_string(i);
    blocks_.push_back(pack_block(spec.blocks[i], hidden_, kernels_, name, store_, positions_, turn));
    const auto& attention = blocks_.back().body.attention;
    needs_places_ |= attention && (attention->position || attention->window);
  }
  if (spec.final) final_.emplace(spec.final, hidden_, kernels_, "final");
}

int64_t Encoder::bytes() const {
  int64_t total = positions_.bytes() + (final_ ? final_->bytes() : 0);
  for (const Block& block : blocks_) total += block.bytes();
  return total;
}

const Norm* Encoder::norm_before(size_t place) const {
  const auto& norm = place < places() ? at(place).before : final_;
  return norm ? &*norm : nullptr;
}

void Encoder::check(const fb_run& run) const {
  if (run.sequences < 0 || !run.offsets || run.offsets[0] != 0) throw Invalid("offsets must begin with 0");
  for (int64_t i = 0; i < run.sequences; ++i)
    if (run.offsets[i + 1] < run.offsets[i] || run.offsets[i + 1] > kLargestRows)
      throw Invalid("offsets must not fall: number %lld does", static_cast<long long>(i + 1));
  const int64_t rows = run.offsets[run.sequences];
  if (rows > 0 && (!run.input || !run.output)) throw Invalid("input or output is missing");
  for (int64_t r = 0; run.index && r < rows; ++r)
    if (run.index[r] < 0 || run.index[r] > kLargestRows)
      throw Invalid("index of row %lld is negative", static_cast<long long>(r));
  if (run.visible && run.bias) throw Invalid("give visible rows or a bias, not both: the bias can hide keys");
  for (int64_t i = 0; run.positions && i < run.sequences; ++i)
    for (int64_t r = run.offsets[i]; r < run.offsets[i + 1]; ++r)
      if (run.positions[r] <= (r > run.offsets[i] ? run.positions[r - 1] : -1))
        throw Invalid("positions rise within a sequence, from 0 or more: that of row %lld does not",
                      static_cast<long long>(r));
  if (run.tap_count < 0 || (run.tap_count > 0 && (!run.taps || !run.states)))
    throw Invalid("taps or states are missing");
  for (int32_t i = 0; i < run.tap_count; ++i) {
    if (run.taps[i] < 0 || run.taps[i] >= static_cast<int32_t>(places()))
      throw Invalid("tap %d is outside the order of %zu blocks", run.taps[i], places());
    if (std::find(run.taps, run.taps + i, run.taps[i]) != run.taps + i)
      throw Invalid("tap %d is given twice", run.taps[i]);
  }
}

void Encoder::run(const fb_run& run) const {
  check(run);
  Pool::call(run.observer ? nullptr : run.pool, run.host, [&](const Pool::Turn& turn) {
    for (int64_t first = 0, last; first < run.sequences; first = last) {
      const int64_t left = run.offsets[run.sequences] - run.offsets[first];
      const int64_t most = wave_rows_ ? wave_rows_ : wave_rows(left, turn.threads());
      for (last = first + 1; last < run.sequences && run.offsets[last + 1] - run.offsets[first] <= most;) ++last;
      Wave(*this, run, turn, first, last).run();
    }
  });
  if (run.profile) ++run.profile->calls;
}

}  // namespace fusebert
