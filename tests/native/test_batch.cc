// Tests of the way from a padded batch and its mask to the ragged one, made to run under sanitizers.
#include <cmath>
#include <cstring>
#include <limits>

#include "batch.h"
#include "check.h"
#include "error.h"

using namespace fusebert;

namespace {

using Ints = std::vector<int64_t>;

template <class Range>
auto list(const Range& range) {
  return std::vector(range.begin(), range.end());
}
template <class T>
Mask mask_of(const std::vector<T>& values, MaskType type, const Ints& shape) {
  return {values.data(), type, shape};
}

template <class F>
bool refused(const char* reason, const F& f) {
  try {
    f();
  } catch (const Invalid& error) {
    return std::strstr(error.what(), reason) != nullptr;
  }
  return false;
}

// Three sequences: padding on the right, on the left, and one that is hidden altogether.
void test_hidden_rows() {
  const std::vector<int32_t> values{1, 1, 0, 0, 1, 1, 0, 0, 0};
  const Ints shape{3, 3};
  const Mask mask = mask_of(values, MaskType::int32, shape);

  const Batch skip(&mask, 3, 3, 1, Hidden::skip);
  CHECK(list(skip.offsets()) == (Ints{0, 2, 4, 4}) && list(skip.index()) == (Ints{0, 1, 4, 5}));
  CHECK(list(skip.positions()) == (std::vector<int32_t>{0, 1, 1, 2}));  // in the padded row, for what depends on them
  CHECK(skip.visible().empty() && list(skip.cleared()) == (Ints{2, 3, 6, 7, 8}));

  const Batch first(&mask, 3, 3, 1, Hidden::first);
  CHECK(list(first.offsets()) == (Ints{0, 2, 5, 8}) && list(first.index()) == (Ints{0, 1, 3, 4, 5, 6, 7, 8}));
  CHECK(list(first.visible()) == (std::vector<uint8_t>{1, 1, 0, 1, 1, 0, 0, 0}));
  CHECK(list(first.cleared()) == (Ints{2, 7, 8}));

  const Batch compute(&mask, 3, 3, 1, Hidden::compute);
  CHECK(compute.rows() == 9 && compute.index().empty() && compute.positions().empty());
  CHECK(compute.cleared().empty());
  CHECK(list(compute.visible()) == (std::vector<uint8_t>{1, 1, 0, 0, 1, 1, 0, 0, 0}));

  std::vector<float> rows(18, 7);
  skip.clear(rows.data(), 2);
  CHECK(rows == (std::vector<float>{7, 7, 7, 7, 0, 0, 0, 0, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0}));
  CHECK(hidden_named("first") == Hidden::first && !hidden_named("auto"));
}

void test_all_types_mean_the_same() {
  const Ints shape{2, 3}, one{2};
  const std::vector<uint8_t> booleans{1, 1, 0, 1, 1, 1};
  const std::vector<int32_t> ints{1, 1, 0, 1, 1, 1}, short_lengths{2, 3};
  const std::vector<int64_t> longs{1, 1, 0, 1, 1, 1}, lengths{2, 3};
  const std::vector<float> floats{1, 1, 0, 1, 1, 1};
  for (const Mask& mask : {mask_of(booleans, MaskType::boolean, shape), mask_of(ints, MaskType::int32, shape),
                           mask_of(longs, MaskType::int64, shape), mask_of(floats, MaskType::float32, shape),
                           mask_of(short_lengths, MaskType::int32, one), mask_of(lengths, MaskType::int64, one)}) {
    const Batch batch(&mask, 2, 3, 1, Hidden::skip);
    CHECK(list(batch.offsets()) == (Ints{0, 2, 5}) && list(batch.index()) == (Ints{0, 1, 3, 4, 5}));
  }
}

void test_biases() {
  const std::vector<float> values(2 * 3 * 4 * 4, -1);
  const auto described = [&](const Ints& shape, MaskType type = MaskType::float32, const void* data = nullptr) {
    const Mask mask{data ? data : values.data(), type, shape};
    const Batch batch(&mask, 2, 4, 3, Hidden::skip);
    fb_run run{};
    batch.describe(run);
    CHECK(run.sequences == 2 && run.offsets[2] == 8 && !run.index && !run.visible && run.bias);
    CHECK(data || run.bias == values.data());  // floats are used where they are
    return Ints(run.bias_stride, run.bias_stride + 4);
  };
  CHECK(described({2, 3, 4, 4}) == (Ints{48, 16, 4, 1}));
  CHECK(described({2, 1, 1, 4}) == (Ints{4, 0, 0, 1}));
  CHECK(described({1, 1, 4, 4}) == (Ints{0, 0, 4, 1}));
  const std::vector<uint8_t> booleans(2 * 4 * 4, 1);
  CHECK(described({2, 4, 4}, MaskType::boolean, booleans.data()) == (Ints{16, 0, 4, 1}));
  CHECK(described({2, 1, 1, 4}, MaskType::boolean, booleans.data()) == (Ints{4, 0, 0, 1}));

  const std::vector<int64_t> square{1, 0, 1, 1};
  const Ints shape{1, 2, 2};
  const Mask mask = mask_of(square, MaskType::int64, shape);
  const Batch batch(&mask, 1, 2, 3, Hidden::skip);
  fb_run run{};
  batch.describe(run);
  CHECK(run.bias[0] == 0 && run.bias[1] == std::numeric_limits<float>::lowest() && run.bias[3] == 0);
}

void test_no_mask_and_no_rows() {
  const Batch all(nullptr, 2, 3, 1, Hidden::skip);
  CHECK(list(all.offsets()) == (Ints{0, 3, 6}) && all.index().empty() && all.visible().empty());
  const std::vector<int64_t> none;
  for (const Ints& shape : {Ints{0, 3}, Ints{3, 0}}) {
    const Mask mask = mask_of(none, MaskType::int64, shape);
    for (const Hidden hidden : {Hidden::skip, Hidden::first, Hidden::compute}) {
      const Batch batch(&mask, shape[0], shape[1], 1, hidden);
      fb_run run{};
      batch.describe(run);
      CHECK(batch.rows() == 0 && run.sequences == shape[0] && run.offsets[shape[0]] == 0);
      batch.clear(nullptr, 4);
    }
  }
}

void test_what_does_not_fit_is_refused() {
  const std::vector<float> floats(64, 2), broken(8, std::nanf(""));
  const std::vector<int64_t> longs{5, -1, 0, 0};
  const auto made = [](const auto& values, MaskType type, const Ints& shape) {
    return [&values, type, shape] {
      const Mask mask{values.data(), type, shape};
      Batch(&mask, 2, 4, 3, Hidden::skip);
    };
  };
  CHECK(refused("holds only 0 and 1", made(floats, MaskType::float32, {2, 4})));
  CHECK(refused("holds only 0 and 1", made(broken, MaskType::float32, {2, 4})));
  CHECK(refused("holds only 0 and 1", made(floats, MaskType::float32, {2, 4, 4})));
  CHECK(refused("mask has shape (2, 3), but", made(longs, MaskType::int64, {2, 3})));
  CHECK(refused("2 whole lengths from 0 to 4", made(longs, MaskType::int64, {2})));
  CHECK(refused("2 whole lengths from 0 to 4", made(longs, MaskType::int64, {3})));
  CHECK(refused("2 whole lengths from 0 to 4", made(floats, MaskType::float32, {2})));
  CHECK(refused("(B, 3, S, S)", made(floats, MaskType::float32, {2, 2, 1, 4})));
  CHECK(refused("(B, 3, S, S)", made(floats, MaskType::float32, {2, 1, 1, 1})));
  CHECK(refused("(B, 3, S, S)", made(floats, MaskType::float32, {1, 4, 4})));
  CHECK(refused("(B, 3, S, S)", made(floats, MaskType::float32, {})));
  CHECK(refused("with four dimensions", made(longs, MaskType::int64, {1, 1, 1, 4})));
  CHECK(refused("mask holds NaN", made(broken, MaskType::float32, {2, 1, 1, 4})));
}

}  // namespace

int main() {
  test_hidden_rows();
  test_all_types_mean_the_same();
  test_biases();
  test_no_mask_and_no_rows();
  test_what_does_not_fit_is_refused();
  return verdict();
}
