#include "batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "error.h"

namespace fusebert {
namespace {

std::string text(std::span<const int64_t> shape) {
  std::string list;
  for (const int64_t size : shape) list += (list.empty() ? "" : ", ") + std::to_string(size);
  return "(" + list + ")";
}

template <class F>
void visit(const Mask& mask, const F& f) {
  switch (mask.type) {
    case MaskType::boolean: return f(static_cast<const uint8_t*>(mask.data));
    case MaskType::int32: return f(static_cast<const int32_t*>(mask.data));
    case MaskType::int64: return f(static_cast<const int64_t*>(mask.data));
    case MaskType::float32: return f(static_cast<const float*>(mask.data));
  }
}

// Zeros and ones of any type as bytes.
std::vector<uint8_t> flags(const Mask& mask, int64_t count) {
  std::vector<uint8_t> visible(static_cast<size_t>(count));
  bool binary = true;
  visit(mask, [&](const auto* values) {
    for (int64_t i = 0; i < count; ++i) {
      visible[static_cast<size_t>(i)] = values[i] != 0;
      binary &= values[i] == 0 || values[i] == 1;
    }
  });
  if (!binary)
    throw Invalid("mask: with %d dimensions it holds only 0 and 1; an additive mask has four dimensions",
                  static_cast<int>(mask.shape.size()));
  return visible;
}

std::vector<uint8_t> from_lengths(const Mask& mask, int64_t sequences, int64_t length) {
  const auto refuse = [&] {
    throw Invalid("mask: %lld whole lengths from 0 to %lld are expected", static_cast<long long>(sequences),
                  static_cast<long long>(length));
  };
  if (mask.shape[0] != sequences || mask.type == MaskType::boolean || mask.type == MaskType::float32) refuse();
  std::vector<uint8_t> visible(static_cast<size_t>(sequences * length));
  visit(mask, [&](const auto* lengths) {
    for (int64_t i = 0; i < sequences; ++i) {
      if (!(lengths[i] >= 0 && lengths[i] <= length)) refuse();
      std::fill_n(visible.begin() + i * length, static_cast<int64_t>(lengths[i]), uint8_t{1});
    }
  });
  return visible;
}

}  // namespace

std::optional<Hidden> hidden_named(std::string_view name) {
  if (name == "skip") return Hidden::skip;
  if (name == "first") return Hidden::first;
  if (name == "compute") return Hidden::compute;
  return std::nullopt;
}

Batch::Batch(const Mask* mask, int64_t sequences, int64_t length, int64_t heads, Hidden hidden)
    : sequences_(sequences) {
  offsets_.push_back(0);
  if (mask && mask->shape.size() == 1) {
    compact(from_lengths(*mask, sequences, length), length, hidden);
  } else if (mask && mask->shape.size() == 2) {
    if (mask->shape[0] != sequences || mask->shape[1] != length)
      throw Invalid("mask has shape %s, but the rows belong to %lld sequences of %lld", text(mask->shape).c_str(),
                    static_cast<long long>(sequences), static_cast<long long>(length));
    compact(flags(*mask, sequences * length), length, hidden);
  } else {
    for (int64_t i = 0; i < sequences; ++i) offsets_.push_back((i + 1) * length);
    if (mask) take_bias(*mask, length, heads);
  }
}

void Batch::compact(const std::vector<uint8_t>& visible, int64_t length, Hidden hidden) {
  for (int64_t i = 0; i < sequences_; ++i) {
    const uint8_t* const own = visible.data() + i * length;
    const bool all_hidden = std::count(own, own + length, uint8_t{1}) == 0;
    for (int64_t r = 0; r < length; ++r) {
      const bool wanted = own[r] || hidden == Hidden::compute || (hidden == Hidden::first && r == 0);
      // The first row of a sequence that is hidden altogether attends to all of its rows.
      if (wanted || (hidden == Hidden::first && all_hidden)) {
        index_.push_back(i * length + r);
        positions_.push_back(static_cast<int32_t>(r));
        visible_.push_back(own[r]);
      }
      if (!wanted) cleared_.push_back(i * length + r);
    }
    offsets_.push_back(static_cast<int64_t>(index_.size()));
  }
  if (index_.size() == visible.size()) index_.clear(), positions_.clear();
  if (std::find(visible_.begin(), visible_.end(), uint8_t{0}) == visible_.end()) visible_.clear();
}

void Batch::take_bias(const Mask& mask, int64_t length, int64_t heads) {
  const bool square = mask.shape.size() == 3;
  const std::vector<int64_t> full =
      square ? std::vector{sequences_, length, length} : std::vector{sequences_, heads, length, length};
  bool fits = mask.shape.size() == full.size();
  int64_t count = 1;
  for (size_t i = 0; fits && i < full.size(); ++i) {
    fits = mask.shape[i] == full[i] || (!square && i < 3 && mask.shape[i] == 1);
    count *= mask.shape[i];
  }
  if (!fits)
    throw Invalid(
        "mask has shape %s; for %lld sequences of %lld it is (B), (B, S), (B, S, S) or (B, %lld, S, S), where all but "
        "the last may be 1",
        text(mask.shape).c_str(), static_cast<long long>(sequences_), static_cast<long long>(length),
        static_cast<long long>(heads));

  if (square || mask.type == MaskType::boolean) {
    for (const uint8_t visible : flags(mask, count))
      own_bias_.push_back(visible ? 0 : std::numeric_limits<float>::lowest());
    bias_ = own_bias_.data();
  } else if (mask.type == MaskType::float32) {
    bias_ = static_cast<const float*>(mask.data);
    if (std::any_of(bias_, bias_ + count, [](float x) { return std::isnan(x); })) throw Invalid("mask holds NaN");
  } else {
    throw Invalid("mask: with four dimensions it is boolean, or floats that are added to the scores");
  }
  if (square) {
    bias_stride_[0] = length * length, bias_stride_[2] = length, bias_stride_[3] = 1;
    return;
  }
  for (int64_t i = 3, stride = 1; i >= 0; stride *= mask.shape[static_cast<size_t>(i)], --i)
    bias_stride_[i] = i < 3 && mask.shape[static_cast<size_t>(i)] == 1 ? 0 : stride;
}

void Batch::describe(fb_run& run) const {
  run.sequences = sequences_;
  run.offsets = offsets_.data();
  run.index = index_.empty() ? nullptr : index_.data();
  run.positions = positions_.empty() ? nullptr : positions_.data();
  run.visible = visible_.empty() ? nullptr : visible_.data();
  run.bias = rows() ? bias_ : nullptr;
  std::copy_n(bias_stride_, 4, run.bias_stride);
}

void Batch::clear(float* padded, int64_t width) const {
  for (const int64_t row : cleared_) std::fill_n(padded + row * width, width, 0.0f);
}

}  // namespace fusebert
