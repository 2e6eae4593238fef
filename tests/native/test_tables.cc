// Every instruction set of this machine gives the same int8 answers. Where inputs and scales are whole numbers and
// powers of two nothing is rounded, and a product must be what integers give, bit for bit; weights are quantised to the
// same bytes. Elsewhere a sum that is rounded in one step or in two moves a value to the next of its 255 levels now and
// then: how far that goes is printed, and held to a bound.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "fusebert.h"

namespace {

using Floats = std::vector<float>;

// The same numbers on every machine.
uint32_t next_number() {
  static uint64_t state = 7;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 33);
}
int64_t whole(int64_t low, int64_t high) { return low + next_number() % (high - low + 1); }
float fraction() { return static_cast<float>(whole(-8388608, 8388607)) / 8388608.0f; }  // -1 .. 1, exactly
Floats fractions(int64_t count) {
  Floats values(static_cast<size_t>(count));
  for (float& v : values) v = fraction() * fraction() * fraction();
  return values;
}

uint64_t digest(const void* data, size_t bytes, uint64_t sum = 14695981039346656037u) {
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211u;
  return sum;
}

struct Product {
  Product(const fb_linear& linear, fb_pool* pool) : outputs(linear.weight->rows), pool(pool) {
    const fb_dense_spec spec{sizeof spec, FB_IDENTITY, &linear, nullptr};
    CHECK(fb_dense_create(&spec, pool, &dense, nullptr) == FB_OK);
  }
  ~Product() { fb_dense_destroy(dense); }
  Product(const Product&) = delete;
  Floats of(const Floats& input, int64_t rows) const {
    Floats output(static_cast<size_t>(rows * outputs));
    CHECK(fb_dense_run(dense, input.data(), rows, output.data(), pool, nullptr) == FB_OK);
    return output;
  }
  int64_t outputs;
  fb_pool* pool;
  fb_dense* dense = nullptr;
};

// Levels with the weights of a row, as whole numbers; then as floats, times powers of two.
void test_whole_numbers(fb_pool* pool, int64_t inputs, int64_t outputs, int64_t rows, bool ranged) {
  std::vector<int8_t> weights(static_cast<size_t>(outputs * inputs));
  for (auto& w : weights) w = static_cast<int8_t>(whole(-31, 31));  // four of them fit what 16 bits hold
  Floats scales(static_cast<size_t>(outputs)), input(static_cast<size_t>(rows * inputs)), want;
  for (float& s : scales) s = std::ldexp(1.0f, static_cast<int>(whole(-8, 0)));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t zero = ranged ? 0 : whole(0, 255);
    const float step = ranged ? 1 : std::ldexp(1.0f, static_cast<int>(whole(-4, 4)));
    std::vector<int64_t> levels(static_cast<size_t>(inputs));
    for (int64_t& level : levels) level = whole(0, 255);
    if (!ranged) levels.front() = 0, levels.back() = 255;  // the row's range is all of them
    for (int64_t i = 0; i < inputs; ++i)
      input[static_cast<size_t>(r * inputs + i)] = static_cast<float>(levels[static_cast<size_t>(i)] - zero) * step;
    for (int64_t o = 0; o < outputs; ++o) {
      int64_t sum = 0;
      for (int64_t i = 0; i < inputs; ++i)
        sum += (levels[static_cast<size_t>(i)] - zero) * weights[static_cast<size_t>(o * inputs + i)];
      want.push_back(static_cast<float>(sum) * step * scales[static_cast<size_t>(o)]);
    }
  }
  const fb_matrix matrix{sizeof matrix, FB_S8, weights.data(), outputs, inputs, inputs, 1, scales.data()};
  const fb_linear linear{sizeof linear, FB_S8, &matrix, nullptr, nullptr, 0, ranged ? 255.0f : 0.0f};
  const Floats got = Product(linear, pool).of(input, rows);
  CHECK(std::equal(got.begin(), got.end(), want.begin()));
}

// What plain C++ gives, which is asked for first, and how far from it another table's answers are, as a share of the
// largest.
struct Answers {
  Floats plain;
  double apart(const Floats& got) {
    if (plain.empty()) plain = got;
    float worst = 0, largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::abs(got[i] - plain[i]));
      largest = std::max(largest, std::abs(plain[i]));
    }
    return static_cast<double>(worst) / static_cast<double>(largest);
  }
};

// Numbers that nothing was prepared for.
struct Given {
  static constexpr int64_t kInputs = 333, kOutputs = 130, kRows = 101;
  Floats weights = fractions(kOutputs * kInputs), bias = fractions(kOutputs), input = fractions(kRows * kInputs);
  static constexpr uint64_t kQuantized = 0x8e073be3b262c90e;  // the digest of its weights in 8 bits, on every machine
  Answers answers[3];

  void test_weights_are_the_same_bytes() const {
    std::vector<int8_t> bytes(weights.size());
    Floats scales(kOutputs);
    const fb_matrix matrix{sizeof matrix, FB_F32, weights.data(), kOutputs, kInputs, kInputs, 1, nullptr};
    CHECK(fb_quantize(&matrix, bytes.data(), scales.data(), nullptr, nullptr) == FB_OK);
    const uint64_t got = digest(scales.data(), sizeof(float) * scales.size(), digest(bytes.data(), bytes.size()));
    std::printf("%s: quantised weights %016llx\n", where.c_str(), static_cast<unsigned long long>(got));
    CHECK(got == kQuantized);
  }

  void test_products(fb_pool* pool) {
    const fb_matrix matrix{sizeof matrix, FB_F32, weights.data(), kOutputs, kInputs, kInputs, 1, nullptr};
    for (const auto& [precision, bound] : {std::pair{FB_F32, 2e-6}, {FB_BF16, 2e-5}, {FB_S8, 5e-4}}) {
      const fb_linear linear{sizeof linear, precision, &matrix, bias.data(), nullptr, 0, 0};
      const Floats got = Product(linear, pool).of(input, kRows);
      const double apart = answers[precision == FB_S8 ? 2 : precision].apart(got);
      std::printf("%s: %s %016llx, %.1e from plain\n", where.c_str(), fb_type_name(precision),
                  static_cast<unsigned long long>(digest(got.data(), sizeof(float) * got.size())), apart);
      CHECK(apart <= bound);
    }
  }
};

std::vector<std::string> tables() {  // plain C++ first
  std::vector<std::string> names;
  for (int i = 0; fb_isa_supported(i); ++i) names.insert(names.begin(), fb_isa_supported(i));
  return names;
}

}  // namespace

// Every instruction set of this machine, or plain C++ and those named as arguments.
int main(int count, char** names) {
  Given given;
  for (const std::string& name : tables()) {
    if (count > 1 && name != "plain" && std::find(names + 1, names + count, name) == names + count) continue;
    where = name;
    setenv("FUSEBERT_ISA", name.c_str(), 1);
    fb_pool* pool = nullptr;
    CHECK(fb_pool_create(2, &pool, nullptr) == FB_OK);
    for (const int64_t inputs : {2, 3, 26, 63, 64, 65, 200, 1025})
      for (const int64_t outputs : {1, 16, 17, 33, 100})
        for (const int64_t rows : {1, 5, 16, 31, 33, 97, 140})
          if (inputs < 300 || outputs + rows < 60)
            for (const bool ranged : {false, true}) test_whole_numbers(pool, inputs, outputs, rows, ranged);
    given.test_weights_are_the_same_bytes();
    given.test_products(pool);
    fb_pool_destroy(pool);
  }
  return verdict();
}
