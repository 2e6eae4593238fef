#include "tf_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "error.h"
#include "status.h"

namespace fusebert {
namespace {

constexpr float kHidden = -1000;  // exp() leaves nothing of a score that is this much below another

template <class F>
void visit(const TF_Tensor* mask, const F& f) {
  const void* const data = TF_TensorData(mask);
  switch (TF_TensorType(mask)) {
    case TF_INT32: return f(static_cast<const int32_t*>(data));
    case TF_INT64: return f(static_cast<const int64_t*>(data));
    case TF_BOOL: return f(static_cast<const uint8_t*>(data));
    default: return f(static_cast<const float*>(data));
  }
}

}  // namespace

Extent extent_of(const TF_Tensor* embedded, const TF_Tensor* mask, int64_t hidden, int64_t heads) {
  const int rank = TF_NumDims(embedded), mask_rank = TF_NumDims(mask);
  const auto fits = [&](int from_last, std::initializer_list<int64_t> sizes) {
    const int64_t size = TF_Dim(mask, mask_rank - 1 - from_last);
    return std::find(sizes.begin(), sizes.end(), size) != sizes.end();
  };
  if ((rank == 2 || rank == 3) && mask_rank >= 2 && mask_rank <= 4 && TF_Dim(embedded, rank - 1) == hidden) {
    const int64_t length = TF_Dim(mask, mask_rank - 1), first = TF_Dim(embedded, 0), own = TF_Dim(mask, 0);
    const int64_t sequences = rank == 3 ? first : length ? first / length : own;
    const bool whole = rank == 3 ? TF_Dim(embedded, 1) == length : sequences * length == first;
    if (whole && (own == 1 || own == sequences) && (mask_rank < 3 || fits(1, {1, length})) &&
        (mask_rank < 4 || fits(2, {1, heads})))
      return {sequences, length};
  }
  throw Invalid(
      "embedded has shape %s and input_mask %s; expected (B, S, %lld) or (B*S, %lld) with a mask (B, S), (B, 1, S), "
      "(B, S, S), (B, 1, 1, S) or (B, %lld, S, S)",
      shape_text(embedded).c_str(), shape_text(mask).c_str(), static_cast<long long>(hidden),
      static_cast<long long>(hidden), static_cast<long long>(heads));
}

NodeBatch::NodeBatch(const TF_Tensor* mask, Extent extent, int64_t heads, const MaskRule& rule, Hidden hidden)
    : extent_(extent) {
  const int rank = TF_NumDims(mask);
  shape_[0] = TF_Dim(mask, 0), shape_[3] = extent.length;
  shape_[1] = rank == 4 ? TF_Dim(mask, 1) : 1;
  shape_[2] = rank == 2 ? 1 : TF_Dim(mask, rank - 2);
  add(mask, rule);
  if (hides_positions()) {
    see(hidden);
    return;
  }
  const Mask added{added_.data(), MaskType::float32, shape_};
  batch_.emplace(&added, extent.sequences, extent.length, heads, hidden);
}

void NodeBatch::add(const TF_Tensor* mask, const MaskRule& rule) {
  added_.resize(static_cast<size_t>(shape_[0] * shape_[1] * shape_[2] * shape_[3]));
  visit(mask, [&](const auto* values) {
    for (size_t i = 0; i < added_.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      added_[i] = rule.additive ? value : rule.value * (1 - value);
    }
  });
  if (!std::all_of(added_.begin(), added_.end(), [](float x) { return x <= std::numeric_limits<float>::max(); }))
    throw Invalid("input_mask holds a number that is infinite or none at all");
}

// Whether all heads and rows of a sequence see the same positions, and what is hidden is so by one and the same number.
bool NodeBatch::hides_positions() const {
  if (shape_[1] != 1) return false;
  const int64_t square = shape_[2] * shape_[3];
  float value = 0;
  for (int64_t i = 0; i < shape_[0]; ++i) {
    const float* const first = added_.data() + i * square;
    for (int64_t row = 1; row < shape_[2]; ++row)
      if (!std::equal(first, first + shape_[3], first + row * shape_[3])) return false;
    for (int64_t key = 0; key < shape_[3]; ++key) {
      if (first[key] == 0) continue;
      if (value == 0) value = first[key];
      if (first[key] != value || !(value <= kHidden)) return false;
    }
  }
  return true;
}

void NodeBatch::see(Hidden hidden) {
  const int64_t square = shape_[2] * shape_[3];
  for (int64_t i = 0; i < extent_.sequences; ++i) {
    const float* const own = added_.data() + (shape_[0] == 1 ? 0 : i * square);
    bool any = extent_.length == 0;
    for (int64_t key = 0; key < extent_.length; ++key) {
      seen_.push_back(own[key] == 0);
      any |= own[key] == 0;
    }
    if (any || hidden == Hidden::skip) continue;
    blind_.push_back(i);
    blind_value_ = own[0];
  }
  const int64_t shape[] = {extent_.sequences, extent_.length};
  const Mask mask{seen_.data(), MaskType::boolean, shape};
  batch_.emplace(&mask, extent_.sequences, extent_.length, 1, hidden);
}

void NodeBatch::run(const fb_encoder* encoder, fb_run run, int64_t width) const {
  const auto encode = [&] { call_core([&](fb_error* error) { return fb_encoder_run(encoder, &run, error); }); };
  batch_->describe(run);
  encode();
  if (!blind_.empty()) {
    // The core takes the mean where nothing is seen, as with the lowest float. The graph adds the same number to all
    // scores, which leaves a softmax over all positions, coarser the larger the number is: that, instead.
    std::vector<int64_t> offsets{0}, index;
    for (const int64_t sequence : blind_) {
      for (int64_t r = 0; r < extent_.length; ++r) index.push_back(sequence * extent_.length + r);
      offsets.push_back(static_cast<int64_t>(index.size()));
    }
    run.sequences = static_cast<int64_t>(blind_.size());
    run.offsets = offsets.data(), run.index = index.data();
    run.visible = nullptr, run.positions = nullptr;
    run.bias = &blind_value_;
    std::fill_n(run.bias_stride, 4, 0);
    encode();
  }
  batch_->clear(run.output, width);
  for (int32_t i = 0; i < run.tap_count; ++i) batch_->clear(run.states[i], width);
}

}  // namespace fusebert
