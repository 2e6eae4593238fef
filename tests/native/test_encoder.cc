// Tests of the C ABI alone, made to run under sanitizers: every instruction set this machine has, against the textbook
// formulas in double precision.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "check.h"
#include "fusebert.h"

namespace {

using Floats = std::vector<float>;
std::mt19937 random_bits(7);

Floats noise(size_t n, float spread, float center = 0) {
  std::normal_distribution<float> normal(center, spread);
  Floats values(n);
  for (float& v : values) v = normal(random_bits);
  return values;
}

struct Linear {
  Linear(int64_t outputs, int64_t inputs, bool transposed = false)
      : outputs(outputs),
        inputs(inputs),
        transposed(transposed),
        weight(noise(static_cast<size_t>(outputs * inputs), 1.0f / std::sqrt(static_cast<float>(inputs)))),
        bias(noise(static_cast<size_t>(outputs), 0.1f)) {}
  fb_matrix matrix() const {
    return {sizeof(fb_matrix),        FB_F32, weight.data(), outputs, inputs, transposed ? 1 : inputs,
            transposed ? outputs : 1, nullptr};
  }
  float at(int64_t o, int64_t i) const {
    return weight[static_cast<size_t>(transposed ? i * outputs + o : o * inputs + i)];
  }
  int64_t outputs, inputs;
  bool transposed;
  Floats weight, bias, scales;
};

struct Plan {
  int32_t precision = FB_F32;
  float low = 0, high = 0;
};

// A linear as the C ABI sees it.
struct View {
  View(const Linear& from, Plan plan)
      : matrix(from.matrix()), linear{sizeof(fb_linear),
                                      plan.precision,
                                      &matrix,
                                      from.bias.data(),
                                      from.scales.empty() ? nullptr : from.scales.data(),
                                      plan.low,
                                      plan.high} {}
  View(const View&) = delete;
  fb_matrix matrix;
  fb_linear linear;
};

struct Norm {
  Norm(int64_t width, float epsilon, int32_t kind)
      : gain(noise(static_cast<size_t>(width), 0.2f, 1)),
        bias(noise(static_cast<size_t>(width), 0.2f)),
        epsilon(epsilon),
        kind(kind) {}
  fb_norm view() const {
    return {sizeof(fb_norm), kind, gain.data(), bias.data(), epsilon, static_cast<int32_t>(gain.size())};
  }
  Floats gain, bias;
  float epsilon;
  int32_t kind;
};
const fb_norm kPlainNorm{sizeof(fb_norm), FB_LAYER_NORM, nullptr, nullptr, 1e-6f, 0};

struct Shape {
  int64_t hidden, heads, key_size, value_size, inner;
  int layers;
  int32_t activation;
  int64_t key_heads = 0;    // 0: as many as heads
  std::string norms = "a";  // which a block has: before, branch, after
  int32_t kind = FB_LAYER_NORM;
  int times = 1;  // that all blocks are run
  bool gated = false;
  int32_t position = FB_NO_POSITION;
  int32_t window = 0;
  int64_t head_norm = 0;  // its width in heads
  bool twice = false;     // is x added

  int64_t groups() const { return key_heads ? key_heads : heads; }
};

constexpr int64_t kReach = 5;  // of relative tables, and half the rows of disentangled ones

// The tables of a position: [heads, 2 * kReach + 1], frequencies, or two of [2 * kReach, heads * key_size].
std::array<Floats, 2> random_tables(const Shape& s) {
  switch (s.position) {
    case FB_ROTARY: return {noise(static_cast<size_t>(s.key_size / 2), 0.5f), {}};
    case FB_RELATIVE: return {noise(static_cast<size_t>(s.heads * (2 * kReach + 1)), 1), {}};
    case FB_DISENTANGLED: {
      const auto size = static_cast<size_t>(2 * kReach * s.heads * s.key_size);
      return {noise(size, 1), noise(size, 1)};
    }
    default: return {};
  }
}

// One residual step: attention (query, key, value, out) or a feed-forward network (up, down and perhaps gate).
struct Block {
  Block(const Shape& s, bool attends, bool transposed) : attends(attends) {
    const auto add = [&](int64_t outputs, int64_t inputs) { linears.emplace_back(outputs, inputs, transposed); };
    if (attends) {
      add(s.heads * s.key_size, s.hidden), add(s.groups() * s.key_size, s.hidden);
      add(s.groups() * s.value_size, s.hidden), add(s.hidden, s.heads * s.value_size);
      tables = random_tables(s);
      for (const auto& [which, heads] : {std::pair{'q', s.heads}, {'k', s.groups()}})
        if (s.head_norm)
          norms.emplace(which, Norm(s.key_size * (s.head_norm == s.heads ? heads : s.head_norm), 1e-5f, s.kind));
    } else {
      add(s.inner, s.hidden), add(s.hidden, s.inner);
      if (s.gated) add(s.inner, s.hidden);
    }
    for (const char which : s.norms) norms.emplace(which, Norm(s.hidden, attends ? 1e-5f : 3e-5f, s.kind));
  }
  bool attends;
  std::vector<Linear> linears;
  std::map<char, Norm> norms;
  std::array<Floats, 2> tables;
};

struct Model {
  Model(Shape shape, bool transposed = false)
      : shape(shape), scale(1 / std::sqrt(static_cast<float>(shape.key_size))), final(shape.hidden, 1e-6f, shape.kind) {
    for (int i = 0; i < 2 * shape.layers; ++i) blocks.emplace_back(shape, i % 2 == 0, transposed);
    for (int i = 0; i < 2 * shape.layers * shape.times; ++i) order.push_back(i % (2 * shape.layers));
  }
  bool has_final() const { return shape.norms.find('b') != std::string::npos; }

  fb_encoder* create(Plan plan, int32_t attention, fb_pool* pool, fb_error* why = nullptr) const {
    std::deque<View> views;
    std::deque<fb_norm> norms;
    std::deque<fb_attention> attentions;
    std::deque<fb_position> positions;
    std::deque<fb_feed_forward> networks;
    std::deque<fb_block> all;
    std::vector<const fb_block*> pointers;
    for (const Block& block : blocks) {
      const auto linear = [&](size_t i) { return &views.emplace_back(block.linears[i], plan).linear; };
      const auto norm = [&](char which) -> const fb_norm* {
        const auto found = block.norms.find(which);
        return found == block.norms.end() ? nullptr : &norms.emplace_back(found->second.view());
      };
      fb_position position{sizeof position, shape.position, {}, 2 * kReach, kReach, 0};
      for (size_t i = 0; i < 2; ++i) position.table[i] = block.tables[i].empty() ? nullptr : block.tables[i].data();
      if (shape.position == FB_ROTARY) position.count = shape.key_size / 2;
      fb_block view{sizeof view, norm('b'), nullptr, nullptr, norm('r'), norm('a'), shape.twice};
      if (block.attends)
        view.attention = &attentions.emplace_back(
            fb_attention{sizeof(fb_attention), static_cast<int32_t>(shape.heads), static_cast<int32_t>(shape.key_heads),
                         attention, scale, shape.window, linear(0), linear(1), linear(2), linear(3), norm('q'),
                         norm('k'), shape.position ? &positions.emplace_back(position) : nullptr, bytes});
      else
        view.feed_forward = &networks.emplace_back(fb_feed_forward{sizeof(fb_feed_forward), shape.activation, linear(0),
                                                                   shape.gated ? linear(2) : nullptr, linear(1)});
      pointers.push_back(&all.emplace_back(view));
    }
    const fb_norm last = final.view();
    fb_encoder_spec spec{sizeof spec,
                         static_cast<int32_t>(shape.hidden),
                         static_cast<int32_t>(pointers.size()),
                         static_cast<int32_t>(order.size()),
                         pointers.data(),
                         order.data(),
                         has_final() ? &last : nullptr};
    if (change) change(all, spec);
    fb_encoder* encoder = nullptr;
    fb_error error{};
    CHECK((fb_encoder_create(&spec, pool, &encoder, &error) == FB_OK) == (encoder != nullptr));
    CHECK(encoder || error.message[0]);
    if (why) *why = error;
    return encoder;
  }
  Shape shape;
  float scale;
  std::vector<Block> blocks;
  std::vector<int32_t> order;
  Norm final;
  int32_t bytes = FB_NEVER;                                             // in attention
  std::function<void(std::deque<fb_block>&, fb_encoder_spec&)> change;  // of what is given to the core
};

// ---- the truth ----

using Doubles = std::vector<double>;

Doubles apply(const Linear& linear, const Doubles& x, int64_t rows) {
  Doubles y(static_cast<size_t>(rows * linear.outputs));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t o = 0; o < linear.outputs; ++o) {
      double sum = linear.bias[static_cast<size_t>(o)];
      for (int64_t i = 0; i < linear.inputs; ++i)
        sum += x[static_cast<size_t>(r * linear.inputs + i)] * linear.at(o, i);
      y[static_cast<size_t>(r * linear.outputs + o)] = sum;
    }
  return y;
}

double activated(int32_t activation, double x) {
  switch (activation) {
    case FB_GELU_ERF: return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case FB_GELU_TANH: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case FB_GELU_QUICK: return x / (1 + std::exp(-1.702 * x));
    case FB_SILU: return x / (1 + std::exp(-x));
    case FB_RELU: return x > 0 ? x : 0;
    case FB_TANH: return std::tanh(x);
    default: return x;
  }
}

void normalize(Doubles& x, const Norm& norm) {
  const size_t width = norm.gain.size();
  for (size_t first = 0; first < x.size(); first += width) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < width && norm.kind == FB_LAYER_NORM; ++i) mean += x[first + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) variance += std::pow(x[first + i] - mean, 2) / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i)
      x[first + i] = (x[first + i] - mean) / std::sqrt(variance + norm.epsilon) * norm.gain[i] + norm.bias[i];
  }
}

// Every part of rows that has the norm's width.
void normalize_heads(const Block& block, char which, Doubles& rows) {
  if (const auto found = block.norms.find(which); found != block.norms.end()) normalize(rows, found->second);
}

// Rows of heads, turned by their positions.
void rotate(const Model& model, const Block& block, Doubles& rows, int64_t width, int64_t origin) {
  const int64_t half = model.shape.key_size / 2;
  for (size_t first = 0; first < rows.size(); first += static_cast<size_t>(2 * half))
    for (int64_t k = 0; k < half; ++k) {
      const auto row = static_cast<int64_t>(first) / width - origin;
      const double angle = static_cast<double>(static_cast<float>(row) * block.tables[0][static_cast<size_t>(k)]);
      double &u = rows[first + static_cast<size_t>(k)], &v = rows[first + static_cast<size_t>(k + half)];
      std::tie(u, v) = std::pair(u * std::cos(angle) - v * std::sin(angle), v * std::cos(angle) + u * std::sin(angle));
    }
}

// What its position adds to the score of query r and key c.
double term(const Model& model, const Block& block, int64_t h, const double* q, const double* k, int64_t r, int64_t c) {
  const Shape& s = model.shape;
  if (s.position == FB_RELATIVE)
    return block.tables[0][static_cast<size_t>(h * (2 * kReach + 1) + std::clamp(c - r, -kReach, kReach) + kReach)];
  if (s.position != FB_DISENTANGLED) return 0;
  const int64_t row = std::clamp<int64_t>(r - c + kReach, 0, 2 * kReach - 1);
  double sum = 0;
  for (int64_t d = 0; d < s.key_size; ++d) {
    const auto at = static_cast<size_t>((row * s.heads + h) * s.key_size + d);
    sum += q[d] * block.tables[0][at] + k[d] * block.tables[1][at];
  }
  return sum * model.scale;
}

// Attention of one sequence.
Doubles attended(const Model& model, const Block& block, const Doubles& x, int64_t rows,
                 const std::vector<uint8_t>& visible, const Floats& bias) {
  const Shape& s = model.shape;
  Doubles q = apply(block.linears[0], x, rows), k = apply(block.linears[1], x, rows);
  const Doubles v = apply(block.linears[2], x, rows);
  normalize_heads(block, 'q', q), normalize_heads(block, 'k', k);
  const auto origin = std::find(visible.begin(), visible.end(), 1) - visible.begin();
  if (s.position == FB_ROTARY) {
    rotate(model, block, q, s.heads * s.key_size, visible.empty() ? 0 : origin);
    rotate(model, block, k, s.groups() * s.key_size, visible.empty() ? 0 : origin);
  }
  Doubles context(static_cast<size_t>(rows * s.heads * s.value_size));
  for (int64_t h = 0; h < s.heads; ++h)
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t group = h / (s.heads / s.groups());
      Doubles p(static_cast<size_t>(rows));
      double peak = -INFINITY, total = 0;
      for (int64_t c = 0; c < rows; ++c) {
        double score = 0;
        for (int64_t d = 0; d < s.key_size; ++d)
          score += q[static_cast<size_t>((r * s.heads + h) * s.key_size + d)] *
                   k[static_cast<size_t>((c * s.groups() + group) * s.key_size + d)];
        const double added = term(model, block, h, &q[static_cast<size_t>((r * s.heads + h) * s.key_size)],
                                  &k[static_cast<size_t>((c * s.groups() + group) * s.key_size)], r, c);
        score = static_cast<double>(static_cast<float>(score * model.scale + added +
                                                       (bias.empty() ? 0 : bias[static_cast<size_t>(r * rows + c)])));
        if (!visible.empty() && !visible[static_cast<size_t>(c)]) score = -3.4e38;
        if (s.window && std::abs(r - c) > s.window) score = -INFINITY;
        p[static_cast<size_t>(c)] = score;
        peak = std::max(peak, score);
      }
      for (double& e : p) total += e = std::exp(e - peak);
      for (int64_t c = 0; c < rows; ++c)
        for (int64_t d = 0; d < s.value_size; ++d)
          context[static_cast<size_t>((r * s.heads + h) * s.value_size + d)] +=
              p[static_cast<size_t>(c)] / total * v[static_cast<size_t>((c * s.groups() + group) * s.value_size + d)];
    }
  return apply(block.linears[3], context, rows);
}

// One sequence; bias is [rows, rows] or empty, visible one flag per row or empty.
Doubles truth(const Model& model, const Floats& input, int64_t rows, const std::vector<uint8_t>& visible,
              const Floats& bias) {
  Doubles x(input.begin(), input.end());
  for (const int32_t number : model.order) {
    const Block& block = model.blocks[static_cast<size_t>(number)];
    const auto norm = [&](char which, Doubles& values) {
      if (const auto found = block.norms.find(which); found != block.norms.end()) normalize(values, found->second);
    };
    Doubles branch = x;
    norm('b', branch);
    if (block.attends) {
      branch = attended(model, block, branch, rows, visible, bias);
    } else {
      Doubles up = apply(block.linears[0], branch, rows);
      Doubles gate = model.shape.gated ? apply(block.linears[2], branch, rows) : up;
      for (size_t i = 0; i < up.size(); ++i)
        up[i] = activated(model.shape.activation, gate[i]) * (model.shape.gated ? up[i] : 1);
      branch = apply(block.linears[1], up, rows);
    }
    for (size_t i = 0; model.shape.twice && i < x.size(); ++i) branch[i] += x[i];
    norm('r', branch);
    for (size_t i = 0; i < x.size(); ++i) x[i] += branch[i];
    norm('a', x);
  }
  if (model.has_final()) normalize(x, model.final);
  return x;
}

double distance(const float* got, const Doubles& want) {
  double worst = 0, scale = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::isfinite(got[i]) ? std::max(worst, std::abs(got[i] - want[i])) : INFINITY;
    scale = std::max(scale, std::abs(want[i]));
  }
  return worst / scale;
}

// Root mean squares: of what is off, as a share of what is wanted. A sum of int8 that is one level off may be the
// largest number of a small network, so the worst number alone tells little.
double spread(const float* got, const Doubles& want) {
  double off = 0, scale = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    off += std::isfinite(got[i]) ? (got[i] - want[i]) * (got[i] - want[i]) : INFINITY;
    scale += want[i] * want[i];
  }
  return std::sqrt(off / scale);
}

fb_run batch(const std::vector<int64_t>& offsets, const Floats& input, Floats& output, fb_pool* pool) {
  fb_run run{};
  run.size = sizeof run;
  run.sequences = static_cast<int64_t>(offsets.size()) - 1;
  run.offsets = offsets.data();
  run.input = input.data();
  output.assign(input.size(), NAN);
  run.output = output.data();
  run.pool = pool;
  return run;
}

const Shape kShapes[] = {{64, 4, 16, 16, 128, 2, FB_GELU_ERF},
                         {78, 3, 26, 26, 150, 2, FB_GELU_TANH},
                         {33, 1, 7, 5, 17, 3, FB_GELU_QUICK},
                         {40, 5, 9, 12, 1, 1, FB_RELU},
                         {1, 1, 1, 1, 3, 1, FB_GELU_ERF},
                         {48, 4, 12, 10, 70, 2, FB_GELU_ERF, 2, "b"},
                         {48, 4, 12, 12, 70, 1, FB_RELU, 1, "ba", FB_RMS_NORM, 3},
                         {40, 2, 20, 20, 64, 2, FB_GELU_TANH, 0, "bra", FB_RMS_NORM},
                         {36, 2, 18, 18, 50, 2, FB_SILU, 0, "ra", FB_LAYER_NORM, 1, false, FB_NO_POSITION, 0, 0, true},
                         {40, 2, 20, 20, 64, 1, FB_TANH, 0, "r", FB_LAYER_NORM, 2},
                         {24, 2, 8, 8, 30, 1, FB_GELU_ERF, 0, ""},
                         {24, 2, 8, 8, 30, 1, FB_SILU, 0, "ba", FB_RMS_NORM, 1, true, FB_ROTARY, 3},
                         {30, 3, 10, 7, 41, 2, FB_GELU_ERF, 1, "b", FB_RMS_NORM, 1, true, FB_ROTARY, 0, 1},
                         {30, 4, 10, 6, 41, 2, FB_RELU, 2, "a", FB_LAYER_NORM, 1, false, FB_RELATIVE, 0, 4},
                         {30, 2, 12, 12, 33, 2, FB_GELU_TANH, 0, "a", FB_LAYER_NORM, 1, false, FB_RELATIVE, 7},
                         {36, 4, 9, 9, 50, 2, FB_GELU_ERF, 0, "a", FB_LAYER_NORM, 1, false, FB_DISENTANGLED},
                         {36, 4, 9, 50, 50, 1, FB_TANH, 2, "a", FB_LAYER_NORM, 1, true, FB_DISENTANGLED, 9}};

// ---- what must hold ----

void test_agrees_with_the_formulas(fb_pool* pool) {
  for (const Shape& shape : kShapes)
    for (const auto& [precision, attention, bytes, usual, worst] : {std::tuple{FB_F32, FB_F32, FB_NEVER, 1e-6, 2e-6},
                                                                    {FB_BF16, FB_BF16, FB_NEVER, 0.01, 0.03},
                                                                    {FB_S8, FB_F32, FB_NEVER, 0.04, 0.1},
                                                                    {FB_S8, FB_BF16, FB_NEVER, 0.04, 0.1},
                                                                    {FB_F32, FB_F32, FB_ALWAYS, 0.013, 0.03},
                                                                    {FB_S8, FB_BF16, FB_ALWAYS, 0.04, 0.1}}) {
      where += " hidden " + std::to_string(shape.hidden) + " norms " + shape.norms + " position " +
               std::to_string(shape.position) + " precision " + std::to_string(precision) + " bytes " +
               std::to_string(bytes);
      Model model(shape, shape.hidden % 2 == 0);
      model.bytes = bytes;
      fb_encoder* encoder = model.create({precision}, attention, pool);
      CHECK(encoder && fb_encoder_bytes(encoder) > 0);
      const std::vector<int64_t> offsets{0, 5, 5, 6, 39, 52};
      const Floats input = noise(static_cast<size_t>(offsets.back() * shape.hidden), 1);
      Floats output;
      fb_run run = batch(offsets, input, output, pool);
      CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
      Doubles want;
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        const Floats own(input.begin() + offsets[i] * shape.hidden, input.begin() + offsets[i + 1] * shape.hidden);
        if (own.empty()) continue;
        const Doubles rows = truth(model, own, offsets[i + 1] - offsets[i], {}, {});
        want.insert(want.end(), rows.begin(), rows.end());
      }
      if (shape.hidden > 1) {
        CHECK(distance(output.data(), want) < worst);
        CHECK(spread(output.data(), want) < usual);
      }
      fb_encoder_destroy(encoder);
      where.resize(where.find(" hidden"));
    }
}

void test_masks(fb_pool* pool, const Shape& shape, int32_t bytes = FB_NEVER) {
  Model model(shape);
  model.bytes = bytes;
  const double tolerance = bytes ? 0.04 : 2e-6;
  const int64_t rows = 21, hidden = model.shape.hidden;
  const Floats input = noise(static_cast<size_t>(rows * hidden), 1);
  fb_encoder* encoder = model.create({}, FB_F32, pool);
  for (const int kind : {0, 1, 2, 3}) {  // right, left, holes, all hidden
    if (kind == 3 && shape.window) continue;
    std::vector<uint8_t> visible(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r)
      visible[static_cast<size_t>(r)] = kind == 0 ? r < 9 : kind == 1 ? r > 4 : kind == 2 ? r % 3 != 1 : 0;
    Floats output;
    const std::vector<int64_t> offsets{0, rows};
    fb_run run = batch(offsets, input, output, pool);
    run.visible = visible.data();
    CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
    Doubles want = truth(model, input, rows, visible, {});
    if (shape.window)  // what a hidden row is that sees nothing is not defined
      for (size_t i = 0; i < want.size(); ++i)
        if (!visible[i / static_cast<size_t>(hidden)]) want[i] = output[i] = 0;
    CHECK(distance(output.data(), want) < tolerance);
  }
  Floats bias(static_cast<size_t>(rows * rows));
  for (int64_t i = 0; i < rows * rows; ++i)
    bias[static_cast<size_t>(i)] = i % rows > i / rows ? -3.4e38f : 0.1f * static_cast<float>(i % 7);
  Floats output;
  const std::vector<int64_t> offsets{0, rows};
  fb_run run = batch(offsets, input, output, pool);
  run.bias = bias.data();
  run.bias_stride[2] = rows, run.bias_stride[3] = 1;
  CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
  CHECK(distance(output.data(), truth(model, input, rows, {}, bias)) < 2e-6);
  bias.assign(bias.size(), -INFINITY);  // nothing to see: uniform, not NaN
  CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
  CHECK(distance(output.data(), truth(model, input, rows, std::vector<uint8_t>(static_cast<size_t>(rows)), {})) < 2e-6);
  fb_encoder_destroy(encoder);
}

void test_a_row_does_not_depend_on_its_batch(fb_pool* pool, const Shape& shape) {
  for (const int precision : {FB_F32, FB_BF16, FB_S8}) {
    Model model(shape);
    model.bytes = precision == FB_S8 ? FB_ALWAYS : FB_NEVER;
    fb_encoder* encoder = model.create({precision}, precision == FB_F32 ? FB_F32 : FB_BF16, pool);
    const int64_t hidden = model.shape.hidden;
    std::vector<int64_t> offsets{0};
    for (const int64_t rows : {3, 64, 1, 100, 17, 900, 60}) offsets.push_back(offsets.back() + rows);
    const Floats input = noise(static_cast<size_t>(offsets.back() * hidden), 1);
    Floats together;
    fb_run run = batch(offsets, input, together, pool);
    CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      const Floats own(input.begin() + offsets[i] * hidden, input.begin() + offsets[i + 1] * hidden);
      const std::vector<int64_t> one{0, offsets[i + 1] - offsets[i]};
      Floats alone;
      for (fb_pool* threads : {pool, static_cast<fb_pool*>(nullptr)}) {
        fb_run single = batch(one, own, alone, threads);
        CHECK(fb_encoder_run(encoder, &single, nullptr) == FB_OK);
        CHECK(std::memcmp(alone.data(), together.data() + offsets[i] * hidden, alone.size() * sizeof(float)) == 0);
      }
    }
    fb_encoder_destroy(encoder);
  }
}

// Heads of 192 keys and more are several blocks, of which one may be full or hold a single key.
void test_attention_in_bytes(fb_pool* pool) {
  const Shape shape{32, 2, 16, 20, 8, 1, FB_RELU};
  const Model model(shape);
  for (const int64_t rows : {1, 16, 191, 192, 193, 384, 500}) {
    Floats input = noise(static_cast<size_t>(rows * shape.hidden), 1);
    const std::vector<int64_t> offsets{0, rows};
    const auto outputs = [&](int32_t bytes, int32_t window) {
      Model same = model;
      same.bytes = bytes;
      same.shape.window = window;
      fb_encoder* encoder = same.create({}, FB_F32, pool);
      Floats output;
      fb_run run = batch(offsets, input, output, pool);
      CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
      fb_encoder_destroy(encoder);
      return output;
    };

    for (const int32_t window : {0, 70}) {
      const Floats exact = outputs(FB_NEVER, window), coarse = outputs(FB_ALWAYS, window);
      CHECK(exact != coarse);
      CHECK(distance(coarse.data(), Doubles(exact.begin(), exact.end())) < 0.03);
    }
    input[static_cast<size_t>(rows / 2 * shape.hidden)] = INFINITY;  // a row that is no number to anybody
    const Floats exact = outputs(FB_NEVER, 0), coarse = outputs(FB_ALWAYS, 0);
    CHECK(std::equal(exact.begin(), exact.end(), coarse.begin(),
                     [](float a, float b) { return std::isnan(a) == std::isnan(b); }));
  }
}

// Heads that are too wide for bytes, and sequences that are too short for them to pay, are as without them.
void test_where_bytes_do_not_pay(fb_pool* pool) {
  for (const auto& [shape, rows, bytes] : {std::tuple{Shape{20, 2, 300, 10, 8, 1, FB_RELU}, 64, FB_ALWAYS},
                                           {Shape{20, 2, 10, 300, 8, 1, FB_RELU}, 64, FB_ALWAYS},
                                           {Shape{20, 2, 10, 10, 8, 1, FB_RELU}, 5, FB_WHERE_IT_PAYS}}) {
    Model model(shape);
    const Floats input = noise(static_cast<size_t>(rows * shape.hidden), 1);
    Floats output[2];
    for (const int32_t way : {FB_NEVER, bytes}) {
      model.bytes = way;
      fb_encoder* encoder = model.create({}, FB_F32, pool);
      const std::vector<int64_t> offsets{0, rows};
      fb_run run = batch(offsets, input, output[way == bytes], pool);
      CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
      fb_encoder_destroy(encoder);
    }
    CHECK(output[0] == output[1]);
  }
}

// Every instruction set multiplies the same bytes; floats before and behind are rounded at their last digits.
void test_bytes_are_the_same_on_every_instruction_set() {
  Model model({48, 3, 16, 16, 96, 2, FB_GELU_ERF});
  model.bytes = FB_ALWAYS;
  const std::vector<int64_t> offsets{0, 40, 300};
  const Floats input = noise(static_cast<size_t>(offsets.back() * 48), 1);
  Floats first;
  for (int isa = 0; fb_isa_supported(isa); ++isa) {
    setenv("FUSEBERT_ISA", fb_isa_supported(isa), 1);
    fb_encoder* encoder = model.create({FB_F32}, FB_F32, nullptr);
    Floats output;
    fb_run run = batch(offsets, input, output, nullptr);
    CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
    fb_encoder_destroy(encoder);
    if (first.empty()) first = output;
    CHECK(distance(output.data(), Doubles(first.begin(), first.end())) < 0.005);
  }
}

void test_index_taps_profile_and_observer(fb_pool* pool) {
  const Model model(kShapes[0]);
  fb_encoder* encoder = model.create({}, FB_F32, pool);
  const int64_t hidden = model.shape.hidden, rows = 10, stored = 15;
  const Floats input = noise(static_cast<size_t>(stored * hidden), 1);
  std::vector<int64_t> offsets{0, 4, rows}, index;
  Floats packed;
  for (int64_t r = 0; r < rows; ++r) {
    index.push_back(r + r / 2);
    packed.insert(packed.end(), input.begin() + index.back() * hidden, input.begin() + (index.back() + 1) * hidden);
  }
  Floats direct, spread, first(input.size()), second(input.size());
  fb_run run = batch(offsets, packed, direct, pool);
  CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);

  struct Seen {
    int calls = 0;
    bool rows = true;
  } seen;
  const fb_observer observer{
      sizeof observer, &seen,
      [](void* user, int32_t place, int32_t product, const float* data, int64_t count, int64_t width) {
        auto* seen = static_cast<Seen*>(user);
        seen->rows &= place == seen->calls / 2 && product == seen->calls % 2;
        seen->rows &=
            count == 10 && width == (place % 2 && product ? 128 : 64) && std::isfinite(data[count * width - 1]);
        ++seen->calls;
      }};
  fb_profile profile{sizeof(fb_profile), 0, {}};
  const int32_t taps[] = {3, 1, 0};
  float* states[] = {second.data(), first.data(), nullptr};
  run = batch(offsets, input, spread, pool);
  run.index = index.data();
  run.tap_count = 3, run.taps = taps, run.states = states;
  run.profile = &profile;
  run.observer = &observer;
  CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
  for (int64_t r = 0; r < rows; ++r) {
    const size_t bytes = static_cast<size_t>(hidden) * sizeof(float);
    CHECK(std::memcmp(spread.data() + index[static_cast<size_t>(r)] * hidden, direct.data() + r * hidden, bytes) == 0);
    CHECK(std::memcmp(spread.data() + index[static_cast<size_t>(r)] * hidden,
                      second.data() + index[static_cast<size_t>(r)] * hidden, bytes) == 0);
  }
  CHECK(std::isnan(spread[static_cast<size_t>(2 * hidden)]));  // storage no row points to stays untouched
  CHECK(seen.rows && seen.calls == 8 && first != second);
  CHECK(profile.calls == 1 && profile.seconds[0] > 0 && profile.seconds[4] > 0);
  CHECK(std::strcmp(fb_step_name(1), "attention") == 0 && !fb_step_name(FB_STEPS) && !fb_step_name(-1));
  CHECK(std::strcmp(fb_activation_name(FB_GELU_QUICK), "gelu_quick") == 0 && !fb_activation_name(-1));
  CHECK(std::strcmp(fb_type_name(FB_S8), "s8") == 0 && std::strcmp(fb_norm_name(FB_RMS_NORM), "rms") == 0);
  fb_encoder_destroy(encoder);
}

void test_static_ranges(fb_pool* pool) {
  const Model model(kShapes[0]);
  fb_encoder* encoder = model.create({FB_S8, -6, 6}, FB_F32, pool);
  const std::vector<int64_t> offsets{0, 30};
  const Floats input = noise(static_cast<size_t>(30 * model.shape.hidden), 1);
  Floats output;
  fb_run run = batch(offsets, input, output, pool);
  CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
  CHECK(distance(output.data(), truth(model, input, 30, {}, {})) < 0.1);
  fb_encoder_destroy(encoder);
}

void test_input_scales_tame_an_outlier(fb_pool* pool) {
  Linear linear(24, 50, false);
  Floats input = noise(50 * 9, 1);
  for (size_t r = 0; r < 9; ++r) input[r * 50 + 7] *= 300;
  const Doubles want = apply(linear, Doubles(input.begin(), input.end()), 9);
  double error[2];
  for (const int scaled : {0, 1}) {
    if (scaled) linear.scales = Floats(50, 1), linear.scales[7] = 10;
    const View view(linear, {FB_S8});
    const fb_dense_spec spec{sizeof spec, FB_IDENTITY, &view.linear, nullptr};
    fb_dense* dense = nullptr;
    CHECK(fb_dense_create(&spec, pool, &dense, nullptr) == FB_OK);
    Floats output(24 * 9);
    CHECK(fb_dense_run(dense, input.data(), 9, output.data(), pool, nullptr) == FB_OK);
    error[scaled] = distance(output.data(), want);
    fb_dense_destroy(dense);
  }
  CHECK(error[1] < error[0] / 2);
  fb_error why{};
  fb_dense* none = nullptr;
  linear.scales[3] = 0;
  View view(linear, {FB_S8});
  const fb_dense_spec spec{sizeof spec, FB_IDENTITY, &view.linear, nullptr};
  CHECK(fb_dense_create(&spec, pool, &none, &why) == FB_INVALID && std::strstr(why.message, "input scale 3"));
  linear.scales[3] = 1, view.linear.low = -1, view.linear.high = 1;
  CHECK(fb_dense_create(&spec, pool, &none, &why) == FB_INVALID && std::strstr(why.message, "not both"));
}

void test_quantized_weights_give_the_same_product(fb_pool* pool) {
  const Linear linear(37, 75, false);
  std::vector<int8_t> values(linear.weight.size());
  Floats scales(37);
  const fb_matrix floats = linear.matrix();
  CHECK(fb_quantize(&floats, values.data(), scales.data(), pool, nullptr) == FB_OK);
  View view(linear, {FB_S8});
  const fb_dense_spec spec{sizeof spec, FB_TANH, &view.linear, &kPlainNorm};
  fb_dense *from_floats = nullptr, *from_bytes = nullptr;
  CHECK(fb_dense_create(&spec, pool, &from_floats, nullptr) == FB_OK);
  view.matrix.data = values.data(), view.matrix.scales = scales.data(), view.matrix.type = FB_S8;
  CHECK(fb_dense_create(&spec, pool, &from_bytes, nullptr) == FB_OK);
  const Floats input = noise(75 * 50, 1);
  Floats a(37 * 50), b(37 * 50);
  CHECK(fb_dense_run(from_floats, input.data(), 50, a.data(), pool, nullptr) == FB_OK);
  CHECK(fb_dense_run(from_bytes, input.data(), 50, b.data(), nullptr, nullptr) == FB_OK);
  CHECK(a == b && fb_dense_bytes(from_bytes) > 37 * 75);
  fb_dense_destroy(from_floats), fb_dense_destroy(from_bytes);
}

void test_large_weights_do_not_overflow(fb_pool* pool) {  // four products of bytes are added in 16 bits
  const int64_t inputs = 75, outputs = 37, rows = 7;
  Linear linear(outputs, inputs, false);
  for (size_t i = 0; i < linear.weight.size(); ++i)
    linear.weight[i] = static_cast<int64_t>(i) / inputs % 2 ? -0.5f : 0.5f;
  const std::vector<int8_t> bytes(linear.weight.size(), 127);
  const Floats scales(outputs, 0.5f / 127), input(rows * inputs, 2.0f);
  View view(linear, {FB_S8});
  const fb_dense_spec spec{sizeof spec, FB_IDENTITY, &view.linear, nullptr};
  view.linear.bias = nullptr;
  const auto product = [&](int64_t column) {
    fb_dense* dense = nullptr;
    CHECK(fb_dense_create(&spec, pool, &dense, nullptr) == FB_OK);
    Floats output(rows * outputs);
    CHECK(fb_dense_run(dense, input.data(), rows, output.data(), pool, nullptr) == FB_OK);
    fb_dense_destroy(dense);
    return output[column];
  };
  CHECK(std::abs(product(0) - inputs) < 0.01f * inputs && std::abs(product(1) + inputs) < 0.01f * inputs);
  view.matrix.data = bytes.data(), view.matrix.scales = scales.data(), view.matrix.type = FB_S8;
  CHECK(std::abs(product(0) - inputs) < 0.01f * inputs && std::abs(product(1) - inputs) < 0.01f * inputs);
}

void test_weights_that_are_added_in_16_bits_keep_the_limit(fb_pool* pool) {
  for (const int64_t inputs : {1, 2, 7, 8, 75, 768}) {
    Linear linear(37, inputs, false);
    for (size_t i = 0; i < linear.weight.size(); i += 3) linear.weight[i] *= 5;
    std::vector<int8_t> values(linear.weight.size());
    Floats scales(37);
    const fb_matrix floats = linear.matrix();
    CHECK(fb_quantize(&floats, values.data(), scales.data(), pool, nullptr) == FB_OK);
    for (int64_t row = 0; row < 37; ++row)
      for (int64_t first = 0; first < inputs; first += first % 8 ? 6 : 2) {
        int above = 0, below = 0;
        for (const int64_t i : {first, first + 1, first + 4, first + 5})
          if (i < inputs) (values[row * inputs + i] > 0 ? above : below) += values[row * inputs + i];
        CHECK(above <= 128 && -below <= 128);
      }
  }
}

void test_any_number_of_threads_and_rows_gives_the_same(int threads) {  // blocks that a thread has alone, or shares
  fb_pool* pool = nullptr;
  CHECK(fb_pool_create(threads, &pool, nullptr) == FB_OK);
  const Linear linear(70, 50, false);
  const Floats input = noise(50 * 1400, 1);
  for (const int32_t precision : {FB_F32, FB_BF16, FB_S8}) {
    const View view(linear, {precision});
    const fb_dense_spec spec{sizeof spec, FB_RELU, &view.linear, &kPlainNorm};
    fb_dense* dense = nullptr;
    CHECK(fb_dense_create(&spec, pool, &dense, nullptr) == FB_OK);
    for (const int64_t rows : {1, 95, 97, 127, 128, 129, 200, 300, 1279, 1280, 1399}) {
      Floats alone(70 * rows), together(70 * rows);
      CHECK(fb_dense_run(dense, input.data(), rows, alone.data(), nullptr, nullptr) == FB_OK);
      CHECK(fb_dense_run(dense, input.data(), rows, together.data(), pool, nullptr) == FB_OK);
      CHECK(alone == together);
    }
    fb_dense_destroy(dense);
  }
  fb_pool_destroy(pool);
}

void test_extreme_values(fb_pool* pool) {  // dense as a probe of the pointwise functions
  const float one = 1;
  const fb_matrix matrix{sizeof matrix, FB_F32, &one, 1, 1, 1, 1, nullptr};
  const fb_linear unchanged{sizeof unchanged, FB_F32, &matrix, nullptr, nullptr, 0, 0};
  for (int32_t activation = 0; fb_activation_name(activation); ++activation) {
    const fb_dense_spec spec{sizeof spec, activation, &unchanged, nullptr};
    fb_dense* dense = nullptr;
    CHECK(fb_dense_create(&spec, pool, &dense, nullptr) == FB_OK);
    Floats in, out;
    for (double x = -40; x <= 40; x += 0.0137) in.push_back(static_cast<float>(x));
    for (const float x : {0.0f, -0.0f, 1e-30f, -1e-6f, 3e4f, -3e4f, 1e30f, -1e30f}) in.push_back(x);
    out.resize(in.size());
    CHECK(fb_dense_run(dense, in.data(), static_cast<int64_t>(in.size()), out.data(), pool, nullptr) == FB_OK);
    double worst = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const double want = activated(activation, in[i]);
      const double size = std::clamp(std::abs(static_cast<double>(in[i])), 1.0, 6.0);  // what is rounded on the way
      worst = std::max(worst, std::abs(out[i] - want) / std::max(size, std::abs(want)));
      if (!std::isfinite(out[i])) worst = INFINITY;
    }
    CHECK(worst < 2.5e-7);
    fb_dense_destroy(dense);
  }
  // A broken row says so in 8 bits too, and leaves its neighbours alone.
  const Linear linear(20, 40, false);
  const View view(linear, {FB_S8});
  const fb_dense_spec spec{sizeof spec, FB_IDENTITY, &view.linear, nullptr};
  fb_dense* dense = nullptr;
  CHECK(fb_dense_create(&spec, pool, &dense, nullptr) == FB_OK);
  Floats in = noise(40 * 4, 1), out(20 * 4);
  in[47] = NAN, in[133] = INFINITY;
  std::fill_n(in.begin() + 80, 40, 0.0f);
  CHECK(fb_dense_run(dense, in.data(), 4, out.data(), pool, nullptr) == FB_OK);
  CHECK(std::isfinite(out[0]) && std::isnan(out[20]) && out[40] == linear.bias[0] && std::isnan(out[60]));
  fb_dense_destroy(dense);
}

void test_embeddings(fb_pool* pool) {
  const int64_t width = 19;
  const Floats word = noise(static_cast<size_t>(50 * width), 1), position = noise(static_cast<size_t>(8 * width), 1);
  const fb_matrix words{sizeof words, FB_F32, word.data(), 50, width, width, 1, nullptr};
  fb_matrix places{sizeof places, FB_F32, position.data(), 8, width, width, 1, nullptr};
  const Norm norm(width, 1e-12f, FB_LAYER_NORM);
  const fb_norm normed = norm.view();
  fb_embedding_spec spec{sizeof spec, &words, &places, nullptr, &normed, 1};
  fb_embedding* embedding = nullptr;
  CHECK(fb_embedding_create(&spec, &embedding, nullptr) == FB_OK);
  std::vector<int64_t> ids, positions;
  for (int64_t r = 0; r < 200; ++r) ids.push_back(r % 50), positions.push_back(r % 8);
  Floats out(static_cast<size_t>(200 * width));
  CHECK(fb_embedding_run(embedding, 200, ids.data(), positions.data(), nullptr, out.data(), pool, nullptr) == FB_OK);
  Doubles want(out.size());
  for (int64_t i = 0; i < 200 * width; ++i) {
    const int64_t row = i / width, column = i % width;
    want[static_cast<size_t>(i)] = word[static_cast<size_t>(ids[static_cast<size_t>(row)] * width + column)] +
                                   position[static_cast<size_t>(positions[static_cast<size_t>(row)] * width + column)];
  }
  normalize(want, norm);
  CHECK(distance(out.data(), want) < 2e-6);
  fb_error error{};
  ids[3] = 50;
  CHECK(fb_embedding_run(embedding, 200, ids.data(), positions.data(), nullptr, out.data(), pool, &error) ==
        FB_INVALID);
  CHECK(std::strstr(error.message, "token id 50 is outside 0 to 49"));
  CHECK(fb_embedding_run(embedding, 200, nullptr, positions.data(), nullptr, out.data(), pool, &error) == FB_INVALID);
  CHECK(fb_embedding_run(embedding, 0, nullptr, nullptr, nullptr, nullptr, pool, &error) == FB_OK);
  fb_embedding_destroy(embedding);
  places.data = nullptr;
  CHECK(fb_embedding_create(&spec, &embedding, &error) == FB_INVALID);
  spec.position = nullptr, spec.norm = nullptr, spec.scale = 4;  // words alone
  CHECK(fb_embedding_create(&spec, &embedding, nullptr) == FB_OK);
  ids[3] = 7;
  CHECK(fb_embedding_run(embedding, 200, ids.data(), nullptr, nullptr, out.data(), pool, nullptr) == FB_OK);
  CHECK(std::equal(word.begin() + 7 * width, word.begin() + 8 * width, out.begin() + 3 * width,
                   [](float given, float got) { return got == 4 * given; }));
  fb_embedding_destroy(embedding);
}

void test_bad_input_is_refused(fb_pool* pool) {
  Model model(kShapes[0]);
  fb_error error{};
  fb_encoder* encoder = nullptr;
  CHECK(fb_encoder_create(nullptr, pool, &encoder, &error) == FB_INVALID);
  const auto refused = [&](const char* sentence, Plan plan = {}, int32_t attention = FB_F32) {
    fb_error why{};
    return !model.create(plan, attention, pool, &why) && std::strstr(why.message, sentence);
  };
  float& last = model.blocks[3].linears[1].weight[5];
  last = NAN;
  CHECK(refused("block 3 down weight row 0: value 5 is not finite", {FB_S8}));
  last = 0;
  model.blocks[1].norms.at('a').epsilon = -1;
  CHECK(refused("block 1 after: epsilon is -1"));
  model.blocks[1].norms.at('a').epsilon = 0;
  model.blocks[1].norms.at('a').kind = 2;
  CHECK(refused("block 1 after: unknown kind 2 of norm"));
  model.blocks[1].norms.at('a').kind = FB_RMS_NORM;
  CHECK(refused("precision 2", {FB_F16}) && refused("attention runs in", {}, FB_S8));
  model.bytes = 3;
  CHECK(refused("block 0: bytes is 3"));
  model.bytes = FB_NEVER;
  CHECK(refused("the input range is 1 to -1", {FB_S8, 1, -1}));
  model.shape.heads = 0;
  CHECK(refused("block 0: 0 heads"));
  model.shape.heads = 3;
  CHECK(refused("block 0: a width of 64 cannot be shared by 3 heads"));
  model.shape.heads = 4, model.shape.key_heads = 3;
  CHECK(refused("block 0: 4 heads cannot be grouped over 3 key heads"));
  model.shape.key_heads = 2;
  CHECK(refused("block 0 key: the weight is 64 x 64, expected 32 x 64"));
  model.shape.key_heads = 0;
  encoder = model.create({}, FB_F32, pool);
  const Floats input(640);
  Floats output;
  const std::vector<int64_t> falling{0, 5, 3}, late{1, 2}, good{0, 10};
  for (const auto& offsets : {falling, late}) {
    fb_run run = batch(offsets, input, output, pool);
    CHECK(fb_encoder_run(encoder, &run, &error) == FB_INVALID && std::strstr(error.message, "offsets"));
  }
  fb_run run = batch(good, input, output, pool);
  const int32_t outside[] = {4}, twice[] = {1, 1};
  float* states[] = {output.data(), output.data()};
  run.tap_count = 1;
  CHECK(fb_encoder_run(encoder, &run, &error) == FB_INVALID &&
        std::strstr(error.message, "taps or states are missing"));
  run.taps = outside, run.states = states;
  CHECK(fb_encoder_run(encoder, &run, &error) == FB_INVALID && std::strstr(error.message, "tap 4 is outside"));
  run.taps = twice, run.tap_count = 2;
  CHECK(fb_encoder_run(encoder, &run, &error) == FB_INVALID && std::strstr(error.message, "tap 1 is given twice"));
  const std::vector<int32_t> behind{0, 1, 2, 3, 4, 4, 6, 7, 8, 9}, negative{-1, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const auto& positions : {behind, negative}) {
    run = batch(good, input, output, pool);
    run.positions = positions.data();
    CHECK(fb_encoder_run(encoder, &run, &error) == FB_INVALID && std::strstr(error.message, "positions rise"));
  }
  run = batch(good, input, output, pool);
  run.size = 0;
  CHECK(fb_encoder_run(encoder, &run, &error) == FB_INVALID);
  const fb_matrix huge{sizeof huge, FB_F32, input.data(), int64_t{1} << 40, 1 << 20, 1, 1, nullptr};
  CHECK(fb_quantize(&huge, nullptr, nullptr, pool, &error) == FB_INVALID);
  CHECK(fb_encoder_run(nullptr, &run, &error) == FB_INVALID &&
        fb_quantize(nullptr, nullptr, nullptr, pool, &error) == FB_INVALID);
  CHECK(fb_encoder_create(nullptr, pool, nullptr, &error) == FB_INVALID &&
        fb_pool_create(1, nullptr, &error) == FB_INVALID);
  CHECK(fb_encoder_bytes(nullptr) == 0 && fb_dense_run(nullptr, nullptr, 0, nullptr, pool, &error) == FB_INVALID);
  fb_pool* none = nullptr;
  CHECK(fb_pool_create(-1, &none, &error) == FB_INVALID && fb_pool_create(100000, &none, &error) == FB_INVALID);
  fb_encoder_destroy(encoder);
}

// Each a change of a good encoder, and the sentence it is refused with.
void test_blocks_that_do_not_fit_are_refused(fb_pool* pool) {
  Model model(kShapes[0]);
  const auto refused = [&](const char* sentence, const auto& change) {
    model.change = change;
    fb_error why{};
    return !model.create({}, FB_F32, pool, &why) && std::strstr(why.message, sentence);
  };
  using Blocks = std::deque<fb_block>;
  fb_attention attention{};
  const auto attending = [&](const auto& set) {
    return [&attention, set](Blocks& blocks, fb_encoder_spec&) {
      attention = *blocks[2].attention;
      set(attention);
      blocks[2].attention = &attention;
    };
  };
  fb_feed_forward network{};
  const int32_t beyond[] = {0, 4};
  const auto placed = [&](const char* sentence, fb_position position) {
    return refused(sentence, attending([&](auto& a) { a.position = &position; }));
  };
  const Floats table(4 * 9 * 64);
  CHECK(refused("block 2: a window of -1", attending([](auto& a) { a.window = -1; })));
  fb_norm narrow = kPlainNorm;
  narrow.width = 15;
  CHECK(refused("block 2 key_norm: a width of 15", attending([&](auto& a) { a.key_norm = &narrow; })));
  CHECK(placed("block 2 position is missing or has no size", {}));
  CHECK(placed("block 2 position: unknown kind 4", {sizeof(fb_position), 4, {}, 0, 0, 0}));
  CHECK(placed("7 frequencies cannot turn heads of 16", {sizeof(fb_position), FB_ROTARY, {table.data()}, 7, 0, 0}));
  CHECK(placed("its table is missing", {sizeof(fb_position), FB_RELATIVE, {}, 0, 4, 0}));
  CHECK(placed("reach is -4", {sizeof(fb_position), FB_RELATIVE, {table.data()}, 0, -4, 0}));
  CHECK(placed("an even number of rows", {sizeof(fb_position), FB_DISENTANGLED, {table.data()}, 9, 4, 0}));
  CHECK(placed("4 buckets do not fit a table of 8 rows and a reach of 3",
               {sizeof(fb_position), FB_DISENTANGLED, {table.data()}, 8, 3, 4}));
  CHECK(refused("block 2: adds_twice needs a branch norm",
                [](Blocks& blocks, fb_encoder_spec&) { blocks[2].adds_twice = 1; }));
  CHECK(refused("block 2 value is missing", attending([](auto& a) { a.value = nullptr; })));
  CHECK(refused("block 3 gate: the weight is 64 x 128, expected 128 x 64", [&](Blocks& blocks, fb_encoder_spec&) {
    network = *blocks[3].feed_forward;
    network.gate = network.down, blocks[3].feed_forward = &network;
  }));
  const auto both = [](Blocks& blocks, fb_encoder_spec&) { blocks[0].feed_forward = blocks[1].feed_forward; };
  const auto neither = [](Blocks& blocks, fb_encoder_spec&) { blocks[0].attention = nullptr; };
  CHECK(refused("block 0: a block has either", both) && refused("block 0: a block has either", neither));
  CHECK(refused("order: number 1 names block 4 of 4", [&](Blocks&, fb_encoder_spec& s) { s.order = beyond; }));
  CHECK(refused("blocks are missing", [](Blocks&, fb_encoder_spec& s) { s.blocks = nullptr; }));
  CHECK(refused("order is missing", [](Blocks&, fb_encoder_spec& s) { s.order = nullptr; }));
  fb_linear other{};
  CHECK(refused("block 2 query, key, value: its parts have different precisions",
                attending([&](auto& a) { other = *a.key, other.precision = FB_BF16, a.key = &other; })));
}

// Blocks that run again are packed once, and an order that is not given is all blocks in turn.
void test_shared_blocks_and_no_order(fb_pool* pool) {
  Shape shape = kShapes[0];
  fb_encoder* once = Model(shape).create({}, FB_F32, pool);
  shape.times = 5;
  fb_encoder* often = Model(shape).create({}, FB_F32, pool);
  CHECK(fb_encoder_bytes(once) == fb_encoder_bytes(often));
  Model model(kShapes[0]);
  fb_encoder* named = model.create({}, FB_F32, pool);
  model.change = [](auto&, fb_encoder_spec& spec) { spec.order = nullptr, spec.order_count = 0; };
  fb_encoder* unnamed = model.create({}, FB_F32, pool);
  const std::vector<int64_t> offsets{0, 7};
  const Floats input = noise(static_cast<size_t>(7 * shape.hidden), 1);
  Floats want, got;
  fb_run run = batch(offsets, input, want, pool), again = batch(offsets, input, got, pool);
  CHECK(fb_encoder_run(named, &run, nullptr) == FB_OK && fb_encoder_run(unnamed, &again, nullptr) == FB_OK);
  CHECK(want == got);
  for (fb_encoder* encoder : {once, often, named, unnamed}) fb_encoder_destroy(encoder);
}

void test_no_rows(fb_pool* pool) {
  const Model model(kShapes[0]);
  fb_encoder* encoder = model.create({FB_S8}, FB_BF16, pool);
  const std::vector<int64_t> none{0}, empty{0, 0, 0};
  for (const auto& offsets : {none, empty}) {
    Floats output;
    fb_run run = batch(offsets, {}, output, pool);
    CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
  }
  fb_encoder_destroy(encoder);
}

void test_a_profile_of_an_older_caller_is_not_overrun(fb_pool* pool) {
  const Model model(kShapes[0]);
  fb_encoder* encoder = model.create({}, FB_F32, pool);
  fb_profile profile{2 * sizeof(uint32_t) + 2 * sizeof(double), 0, {0, 0, -1, -1, -1}};
  const Floats input(64 * 3);
  const std::vector<int64_t> offsets{0, 3};
  Floats output;
  fb_run run = batch(offsets, input, output, pool);
  run.profile = &profile;
  CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
  CHECK(profile.calls == 1 && profile.seconds[1] > 0 && profile.seconds[2] == -1);
  fb_encoder_destroy(encoder);
}

// How many of the calls that several threads make at the same time, so often each, are wrong.
template <class Right>
int wrong_of(size_t callers, int times, const Right& right) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(callers);
  for (size_t caller = 0; caller < callers; ++caller)
    threads.emplace_back([&, caller] {
      for (int i = 0; i < times; ++i) wrong[caller] += !right(caller);
    });
  for (auto& thread : threads) thread.join();
  return std::accumulate(wrong.begin(), wrong.end(), 0);
}

void test_concurrent_calls(fb_pool* pool) {
  const Model model(kShapes[0]);
  fb_encoder* encoder = model.create({FB_S8}, FB_BF16, pool);
  const std::vector<int64_t> offsets{0, 40, 41, 75};
  const Floats input = noise(static_cast<size_t>(75 * model.shape.hidden), 1);
  Floats want;
  fb_run run = batch(offsets, input, want, pool);
  CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
  CHECK(wrong_of(8, 10, [&](size_t caller) {
          Floats output;
          fb_run own = batch(offsets, input, output, caller % 4 == 3 ? nullptr : pool);
          return fb_encoder_run(encoder, &own, nullptr) == FB_OK && output == want;
        }) == 0);
  fb_encoder_destroy(encoder);
}

// A host may lend its threads at once, late, one after the other, too many or none at all: the answer is the same.
void test_threads_of_a_host() {
  using Lend = void (*)(int32_t count, void (*task)(void*), void* data);
  const Lend at_once = [](int32_t count, void (*task)(void*), void* data) {
    std::vector<std::thread> threads;
    for (int32_t i = 1; i < count; ++i) threads.emplace_back(task, data);
    task(data);
    for (auto& thread : threads) thread.join();
  };
  const Lend late = [](int32_t, void (*task)(void*), void* data) {
    std::thread thread([&] { std::this_thread::sleep_for(std::chrono::milliseconds(1)), task(data); });
    task(data);
    thread.join();
  };
  const Lend in_turn = [](int32_t count, void (*task)(void*), void* data) {
    for (int32_t i = 0; i < count + 2; ++i) task(data);
  };
  const Lend none = [](int32_t, void (*)(void*), void*) {};

  fb_pool* pool = nullptr;
  const fb_parallel parallel = [](void* host, int32_t count, void (*task)(void*), void* data) {
    (*static_cast<const Lend*>(host))(count, task, data);
  };
  CHECK(fb_pool_borrow(3, nullptr, &pool, nullptr) == FB_INVALID && !pool);
  CHECK(fb_pool_borrow(3, parallel, &pool, nullptr) == FB_OK && fb_pool_threads(pool) == 3);
  const Model model(kShapes[0]);
  fb_encoder* encoder = model.create({}, FB_F32, pool);
  const std::vector<int64_t> offsets{0, 40, 41, 250};
  const Floats input = noise(static_cast<size_t>(250 * model.shape.hidden), 1);
  Floats want;
  fb_run run = batch(offsets, input, want, nullptr);
  CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
  const auto same = [&](const Lend* host) {
    Floats output;
    fb_run own = batch(offsets, input, output, pool);
    own.host = const_cast<Lend*>(host);
    return fb_encoder_run(encoder, &own, nullptr) == FB_OK && output == want;
  };
  for (const Lend* host : {&at_once, &late, &in_turn, &none, static_cast<const Lend*>(nullptr)}) CHECK(same(host));
  CHECK(wrong_of(4, 5, [&](size_t caller) { return same(caller % 2 ? &at_once : &late); }) == 0);
  fb_encoder_destroy(encoder), fb_pool_destroy(pool);
}

void test_forced_isa() {
  fb_error error{};
  const char* name = nullptr;
  setenv("FUSEBERT_ISA", "sse9", 1);
  CHECK(fb_isa(&name, &error) == FB_INVALID && std::strstr(error.message, "use one of"));
  setenv("FUSEBERT_ISA", "", 1);
  CHECK(fb_isa(&name, nullptr) == FB_OK && std::strcmp(name, fb_isa_supported(0)) == 0);
}

}  // namespace

// Every instruction set of this machine, or those named as arguments.
int main(int count, char** names) {
  CHECK(fb_cores(nullptr) >= 1);
  for (int isa = 0; fb_isa_supported(isa); ++isa) {
    bool wanted = count == 1;
    for (int i = 1; i < count; ++i) wanted |= std::strcmp(names[i], fb_isa_supported(isa)) == 0;
    if (!wanted) continue;
    for (const int threads : {1, 3}) {
      where = std::string(fb_isa_supported(isa)) + " threads " + std::to_string(threads);
      random_bits.seed(1);  // the same models on every table: how far 8 bits are off depends on their numbers
      setenv("FUSEBERT_ISA", fb_isa_supported(isa), 1);
      fb_pool* pool = nullptr;
      CHECK(fb_pool_create(threads, &pool, nullptr) == FB_OK && fb_pool_threads(pool) == threads);
      test_agrees_with_the_formulas(pool);
      for (const size_t shape : {1, 10, 12, 13, 14, 15}) test_masks(pool, kShapes[shape]);
      for (const size_t shape : {1, 10, 12, 13, 15}) test_masks(pool, kShapes[shape], FB_ALWAYS);
      test_attention_in_bytes(pool);
      test_where_bytes_do_not_pay(pool);
      test_a_row_does_not_depend_on_its_batch(pool, {18, 2, 5, 5, 30, 1, FB_GELU_ERF});
      for (const size_t shape : {10, 13, 15}) test_a_row_does_not_depend_on_its_batch(pool, kShapes[shape]);
      test_index_taps_profile_and_observer(pool);
      test_static_ranges(pool);
      test_input_scales_tame_an_outlier(pool);
      test_quantized_weights_give_the_same_product(pool);
      test_large_weights_do_not_overflow(pool);
      test_weights_that_are_added_in_16_bits_keep_the_limit(pool);
      test_extreme_values(pool);
      test_embeddings(pool);
      test_bad_input_is_refused(pool);
      test_blocks_that_do_not_fit_are_refused(pool);
      test_shared_blocks_and_no_order(pool);
      test_no_rows(pool);
      test_a_profile_of_an_older_caller_is_not_overrun(pool);
      test_concurrent_calls(pool);
      fb_pool_destroy(pool);
    }
    for (const int threads : {2, 3, 20}) test_any_number_of_threads_and_rows_gives_the_same(threads);
    test_threads_of_a_host();
  }
  where = "any";
  test_bytes_are_the_same_on_every_instruction_set();
  test_forced_isa();
  return verdict();
}
