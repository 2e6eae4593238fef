// Tests of the C ABI alone, made to run under sanitizers: every instruction set this machine has, against the textbook
// formulas in double precision.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
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
  Linear(int64_t outputs, int64_t inputs, bool transposed)
      : outputs(outputs),
        inputs(inputs),
        transposed(transposed),
        weight(noise(static_cast<size_t>(outputs * inputs), 1.0f / std::sqrt(static_cast<float>(inputs)))),
        bias(noise(static_cast<size_t>(outputs), 0.1f)) {}
  fb_linear view() const {
    return {{weight.data(), outputs, inputs, transposed ? 1 : inputs, transposed ? outputs : 1, nullptr, FB_F32},
            bias.data(),
            scales.empty() ? nullptr : scales.data()};
  }
  float at(int64_t o, int64_t i) const {
    return weight[static_cast<size_t>(transposed ? i * outputs + o : o * inputs + i)];
  }
  int64_t outputs, inputs;
  bool transposed;
  Floats weight, bias, scales;
};

struct Shape {
  int64_t hidden, heads, key_size, value_size, inner;
  int layers;
  int32_t activation;
};

struct Layer {
  explicit Layer(const Shape& s, bool transposed)
      : query(s.heads * s.key_size, s.hidden, transposed),
        key(s.heads * s.key_size, s.hidden, transposed),
        value(s.heads * s.value_size, s.hidden, transposed),
        out(s.hidden, s.heads * s.value_size, transposed),
        ffn_in(s.inner, s.hidden, transposed),
        ffn_out(s.hidden, s.inner, transposed) {
    for (auto& gain : gains) gain = noise(static_cast<size_t>(s.hidden), 0.2f, 1);
    for (auto& bias : biases) bias = noise(static_cast<size_t>(s.hidden), 0.2f);
  }
  Linear query, key, value, out, ffn_in, ffn_out;
  Floats gains[2], biases[2];
};

struct Model {
  Model(Shape shape, bool transposed = false) : shape(shape), scale(1 / std::sqrt(static_cast<float>(shape.key_size))) {
    for (int i = 0; i < shape.layers; ++i) layers.emplace_back(shape, transposed);
  }
  fb_encoder* create(int precision, int attention, fb_pool* pool, fb_plan range = {}) const {
    std::vector<fb_layer> views;
    for (const Layer& l : layers) {
      fb_layer view{};
      view.query = l.query.view(), view.key = l.key.view(), view.value = l.value.view();
      view.attention_out = l.out.view(), view.ffn_in = l.ffn_in.view(), view.ffn_out = l.ffn_out.view();
      view.attention_norm = {l.gains[0].data(), l.biases[0].data(), epsilon};
      view.output_norm = {l.gains[1].data(), l.biases[1].data(), epsilon * 3};
      for (auto& plan : view.plan) plan = {precision, range.input_min, range.input_max};
      view.attention = attention, view.heads = static_cast<int32_t>(shape.heads), view.activation = shape.activation;
      view.scale = scale;
      views.push_back(view);
    }
    fb_encoder_spec spec{sizeof spec, sizeof(fb_layer), views.data(), shape.layers, static_cast<int32_t>(shape.hidden)};
    fb_encoder* encoder = nullptr;
    fb_error error{};
    CHECK((fb_encoder_create(&spec, pool, &encoder, &error) == FB_OK) == (encoder != nullptr));
    CHECK(encoder || error.message[0]);
    return encoder;
  }
  Shape shape;
  float scale, epsilon = 1e-5f;
  std::vector<Layer> layers;
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
    case FB_RELU: return x > 0 ? x : 0;
    case FB_TANH: return std::tanh(x);
    default: return x;
  }
}

void add_and_norm(Doubles& x, const Doubles& add, int64_t width, const Floats& gain, const Floats& bias,
                  double epsilon) {
  for (size_t first = 0; first < x.size(); first += static_cast<size_t>(width)) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < width; ++i)
      mean += (x[first + static_cast<size_t>(i)] += add[first + static_cast<size_t>(i)]);
    mean /= static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) variance += std::pow(x[first + static_cast<size_t>(i)] - mean, 2);
    const double inverse = 1 / std::sqrt(variance / static_cast<double>(width) + epsilon);
    for (int64_t i = 0; i < width; ++i) {
      double& v = x[first + static_cast<size_t>(i)];
      v = (v - mean) * inverse * gain[static_cast<size_t>(i)] + bias[static_cast<size_t>(i)];
    }
  }
}

// One sequence; bias is [rows, rows] or empty, visible one flag per row or empty.
Doubles truth(const Model& model, const Floats& input, int64_t rows, const std::vector<uint8_t>& visible,
              const Floats& bias) {
  const Shape& s = model.shape;
  Doubles x(input.begin(), input.end());
  for (const Layer& layer : model.layers) {
    const Doubles q = apply(layer.query, x, rows), k = apply(layer.key, x, rows), v = apply(layer.value, x, rows);
    Doubles context(static_cast<size_t>(rows * s.heads * s.value_size));
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t r = 0; r < rows; ++r) {
        Doubles p(static_cast<size_t>(rows));
        double peak = -INFINITY, total = 0;
        for (int64_t c = 0; c < rows; ++c) {
          double score = 0;
          for (int64_t d = 0; d < s.key_size; ++d)
            score += q[static_cast<size_t>((r * s.heads + h) * s.key_size + d)] *
                     k[static_cast<size_t>((c * s.heads + h) * s.key_size + d)];
          score = static_cast<double>(
              static_cast<float>(score * model.scale + (bias.empty() ? 0 : bias[static_cast<size_t>(r * rows + c)])));
          if (!visible.empty() && !visible[static_cast<size_t>(c)]) score = -3.4e38;
          p[static_cast<size_t>(c)] = score;
          peak = std::max(peak, score);
        }
        for (double& e : p) total += e = std::exp(e - peak);
        for (int64_t c = 0; c < rows; ++c)
          for (int64_t d = 0; d < s.value_size; ++d)
            context[static_cast<size_t>((r * s.heads + h) * s.value_size + d)] +=
                p[static_cast<size_t>(c)] / total * v[static_cast<size_t>((c * s.heads + h) * s.value_size + d)];
      }
    add_and_norm(x, apply(layer.out, context, rows), s.hidden, layer.gains[0], layer.biases[0], model.epsilon);
    Doubles inner = apply(layer.ffn_in, x, rows);
    for (double& value : inner) value = activated(s.activation, value);
    add_and_norm(x, apply(layer.ffn_out, inner, rows), s.hidden, layer.gains[1], layer.biases[1], model.epsilon * 3);
  }
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
                         {1, 1, 1, 1, 3, 1, FB_GELU_ERF}};

// ---- what must hold ----

void test_agrees_with_the_formulas(fb_pool* pool) {
  for (const Shape& shape : kShapes)
    for (const auto& [precision, attention, tolerance] :
         {std::tuple{FB_F32, FB_F32, 2e-6}, {FB_BF16, FB_BF16, 0.03}, {FB_S8, FB_F32, 0.06}, {FB_S8, FB_BF16, 0.06}}) {
      where += " hidden " + std::to_string(shape.hidden) + " precision " + std::to_string(precision);
      const Model model(shape, shape.hidden % 2 == 0);
      fb_encoder* encoder = model.create(precision, attention, pool);
      CHECK(encoder && fb_encoder_bytes(encoder) > 0);
      const std::vector<int64_t> offsets{0, 5, 5, 6, 39, 52};
      const Floats input = noise(static_cast<size_t>(offsets.back() * shape.hidden), 1);
      Floats output;
      fb_run run = batch(offsets, input, output, pool);
      CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
      for (size_t i = 0; i + 1 < offsets.size(); ++i) {
        const int64_t rows = offsets[i + 1] - offsets[i];
        const Floats own(input.begin() + offsets[i] * shape.hidden, input.begin() + offsets[i + 1] * shape.hidden);
        if (rows && shape.hidden > 1)
          CHECK(distance(output.data() + offsets[i] * shape.hidden, truth(model, own, rows, {}, {})) < tolerance);
      }
      fb_encoder_destroy(encoder);
      where.resize(where.find(" hidden"));
    }
}

void test_masks(fb_pool* pool) {
  const Model model(kShapes[1]);
  const int64_t rows = 21, hidden = model.shape.hidden;
  const Floats input = noise(static_cast<size_t>(rows * hidden), 1);
  fb_encoder* encoder = model.create(FB_F32, FB_F32, pool);
  for (const int kind : {0, 1, 2, 3}) {  // right, left, holes, all hidden
    std::vector<uint8_t> visible(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r)
      visible[static_cast<size_t>(r)] = kind == 0 ? r < 9 : kind == 1 ? r > 4 : kind == 2 ? r % 3 != 1 : 0;
    Floats output;
    const std::vector<int64_t> offsets{0, rows};
    fb_run run = batch(offsets, input, output, pool);
    run.visible = visible.data();
    CHECK(fb_encoder_run(encoder, &run, nullptr) == FB_OK);
    CHECK(distance(output.data(), truth(model, input, rows, visible, {})) < 2e-6);
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

void test_a_row_does_not_depend_on_its_batch(fb_pool* pool) {
  for (const int precision : {FB_F32, FB_BF16, FB_S8}) {
    const Model model({18, 2, 5, 5, 30, 1, FB_GELU_ERF});
    fb_encoder* encoder = model.create(precision, precision == FB_F32 ? FB_F32 : FB_BF16, pool);
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

void test_index_hidden_states_profile_and_observer(fb_pool* pool) {
  const Model model(kShapes[0]);
  fb_encoder* encoder = model.create(FB_F32, FB_F32, pool);
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
      &seen, [](void* user, int32_t layer, int32_t product, const float* data, int64_t count, int64_t width) {
        auto* seen = static_cast<Seen*>(user);
        seen->rows &= layer == seen->calls / FB_PRODUCTS && product == seen->calls % FB_PRODUCTS;
        seen->rows &=
            count == 10 && width == (product == FB_FFN_OUT ? 128 : 64) && std::isfinite(data[count * width - 1]);
        ++seen->calls;
      }};
  fb_profile profile{sizeof(fb_profile), 0, {}};
  float* states[] = {first.data(), second.data()};
  run = batch(offsets, input, spread, pool);
  run.index = index.data();
  run.hidden_state_count = 2;
  run.hidden_states = states;
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
  CHECK(seen.rows && seen.calls == 2 * FB_PRODUCTS);
  CHECK(profile.calls == 1 && profile.seconds[0] > 0 && profile.seconds[4] > 0);
  CHECK(std::strcmp(fb_step_name(1), "attention") == 0 && !fb_step_name(FB_STEPS) && !fb_step_name(-1));
  fb_encoder_destroy(encoder);
}

void test_static_ranges(fb_pool* pool) {
  const Model model(kShapes[0]);
  fb_encoder* encoder = model.create(FB_S8, FB_F32, pool, {FB_S8, -6, 6});
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
    fb_dense_spec spec{sizeof spec, FB_IDENTITY, linear.view(), {FB_S8, 0, 0}, 0, {}};
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
  fb_dense_spec spec{sizeof spec, FB_IDENTITY, linear.view(), {FB_S8, 0, 0}, 0, {}};
  CHECK(fb_dense_create(&spec, pool, &none, &why) == FB_INVALID && std::strstr(why.message, "input scale 3"));
  linear.scales[3] = 1, spec.plan = {FB_S8, -1, 1};
  CHECK(fb_dense_create(&spec, pool, &none, &why) == FB_INVALID && std::strstr(why.message, "not both"));
}

void test_quantized_weights_give_the_same_product(fb_pool* pool) {
  const Linear linear(37, 75, false);
  std::vector<int8_t> values(linear.weight.size());
  Floats scales(37);
  const fb_matrix floats = linear.view().weight;
  CHECK(fb_quantize(&floats, values.data(), scales.data(), pool, nullptr) == FB_OK);
  fb_dense_spec spec{sizeof spec, FB_TANH, linear.view(), {FB_S8, 0, 0}, 1, {nullptr, nullptr, 1e-6f}};
  fb_dense *from_floats = nullptr, *from_bytes = nullptr;
  CHECK(fb_dense_create(&spec, pool, &from_floats, nullptr) == FB_OK);
  spec.linear.weight.data = values.data(), spec.linear.weight.scales = scales.data(), spec.linear.weight.type = FB_S8;
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
  fb_dense_spec spec{sizeof spec, FB_IDENTITY, linear.view(), {FB_S8, 0, 0}, 0, {}};
  spec.linear.bias = nullptr;
  const auto product = [&](int64_t column) {
    fb_dense* dense = nullptr;
    CHECK(fb_dense_create(&spec, pool, &dense, nullptr) == FB_OK);
    Floats output(rows * outputs);
    CHECK(fb_dense_run(dense, input.data(), rows, output.data(), pool, nullptr) == FB_OK);
    fb_dense_destroy(dense);
    return output[column];
  };
  CHECK(std::abs(product(0) - inputs) < 0.01f * inputs && std::abs(product(1) + inputs) < 0.01f * inputs);
  spec.linear.weight.data = bytes.data(), spec.linear.weight.scales = scales.data(), spec.linear.weight.type = FB_S8;
  CHECK(std::abs(product(0) - inputs) < 0.01f * inputs && std::abs(product(1) - inputs) < 0.01f * inputs);
}

void test_weights_that_are_added_in_16_bits_keep_the_limit(fb_pool* pool) {
  for (const int64_t inputs : {1, 2, 7, 8, 75, 768}) {
    Linear linear(37, inputs, false);
    for (size_t i = 0; i < linear.weight.size(); i += 3) linear.weight[i] *= 5;
    std::vector<int8_t> values(linear.weight.size());
    Floats scales(37);
    const fb_matrix floats = linear.view().weight;
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
    fb_dense_spec spec{sizeof spec, FB_RELU, linear.view(), {precision, 0, 0}, 1, {nullptr, nullptr, 1e-6f}};
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
  for (const int32_t activation : {FB_GELU_ERF, FB_GELU_TANH, FB_GELU_QUICK, FB_RELU, FB_TANH, FB_IDENTITY}) {
    fb_dense_spec spec{sizeof spec,    activation, {{&one, 1, 1, 1, 1, nullptr, FB_F32}, nullptr, nullptr},
                       {FB_F32, 0, 0}, 0,          {}};
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
  fb_dense_spec spec{sizeof spec, FB_IDENTITY, linear.view(), {FB_S8, 0, 0}, 0, {}};
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
  fb_embedding_spec spec{sizeof spec,
                         {word.data(), 50, width, width, 1, nullptr, FB_F32},
                         {position.data(), 8, width, width, 1, nullptr, FB_F32},
                         {},
                         {nullptr, nullptr, 1e-12f}};
  fb_embedding* embedding = nullptr;
  CHECK(fb_embedding_create(&spec, &embedding, nullptr) == FB_OK);
  std::vector<int64_t> ids, positions;
  for (int64_t r = 0; r < 200; ++r) ids.push_back(r % 50), positions.push_back(r % 8);
  Floats out(static_cast<size_t>(200 * width));
  CHECK(fb_embedding_run(embedding, 200, ids.data(), positions.data(), nullptr, out.data(), pool, nullptr) == FB_OK);
  Doubles want(out.size()), add(out.size());
  for (int64_t i = 0; i < 200 * width; ++i) {
    want[static_cast<size_t>(i)] = word[static_cast<size_t>(ids[static_cast<size_t>(i / width)] * width + i % width)];
    add[static_cast<size_t>(i)] =
        position[static_cast<size_t>(positions[static_cast<size_t>(i / width)] * width + i % width)];
  }
  add_and_norm(want, add, width, Floats(static_cast<size_t>(width), 1), Floats(static_cast<size_t>(width), 0), 1e-12);
  CHECK(distance(out.data(), want) < 2e-6);
  fb_error error{};
  ids[3] = 50;
  CHECK(fb_embedding_run(embedding, 200, ids.data(), positions.data(), nullptr, out.data(), pool, &error) ==
        FB_INVALID);
  CHECK(std::strstr(error.message, "token id 50 is outside 0 to 49"));
  CHECK(fb_embedding_run(embedding, 200, nullptr, positions.data(), nullptr, out.data(), pool, &error) == FB_INVALID);
  CHECK(fb_embedding_run(embedding, 0, nullptr, nullptr, nullptr, nullptr, pool, &error) == FB_OK);
  fb_embedding_destroy(embedding);
  spec.position.data = nullptr;
  CHECK(fb_embedding_create(&spec, &embedding, &error) == FB_INVALID);
}

void test_bad_input_is_refused(fb_pool* pool) {
  Model model(kShapes[0]);
  fb_error error{};
  fb_encoder* encoder = nullptr;
  CHECK(fb_encoder_create(nullptr, pool, &encoder, &error) == FB_INVALID);
  model.layers[1].ffn_out.weight[5] = NAN;
  CHECK(!model.create(FB_S8, FB_F32, pool));
  model.layers[1].ffn_out.weight[5] = 0;
  model.epsilon = -1;
  CHECK(!model.create(FB_F32, FB_F32, pool));
  model.epsilon = 0;
  CHECK(!model.create(FB_F16, FB_F32, pool) && !model.create(FB_F32, FB_S8, pool));
  CHECK(!model.create(FB_S8, FB_F32, pool, {FB_S8, 1, -1}));
  model.shape.heads = 0;
  CHECK(!model.create(FB_F32, FB_F32, pool));
  model.shape.heads = 3;
  CHECK(!model.create(FB_F32, FB_F32, pool));
  model.shape.heads = 4;
  encoder = model.create(FB_F32, FB_F32, pool);
  const Floats input(640);
  Floats output;
  const std::vector<int64_t> falling{0, 5, 3}, late{1, 2}, good{0, 10};
  for (const auto& offsets : {falling, late}) {
    fb_run run = batch(offsets, input, output, pool);
    CHECK(fb_encoder_run(encoder, &run, &error) == FB_INVALID && std::strstr(error.message, "offsets"));
  }
  fb_run run = batch(good, input, output, pool);
  run.hidden_state_count = 1;
  CHECK(fb_encoder_run(encoder, &run, &error) == FB_INVALID && std::strstr(error.message, "2 layers"));
  run = batch(good, input, output, pool);
  run.size = 0;
  CHECK(fb_encoder_run(encoder, &run, &error) == FB_INVALID);
  const fb_matrix huge{input.data(), int64_t{1} << 40, 1 << 20, 1, 1, nullptr, FB_F32};
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

void test_no_rows(fb_pool* pool) {
  const Model model(kShapes[0]);
  fb_encoder* encoder = model.create(FB_S8, FB_BF16, pool);
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
  fb_encoder* encoder = model.create(FB_F32, FB_F32, pool);
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
  fb_encoder* encoder = model.create(FB_S8, FB_BF16, pool);
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
  fb_encoder* encoder = model.create(FB_F32, FB_F32, pool);
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
      setenv("FUSEBERT_ISA", fb_isa_supported(isa), 1);
      fb_pool* pool = nullptr;
      CHECK(fb_pool_create(threads, &pool, nullptr) == FB_OK && fb_pool_threads(pool) == threads);
      test_agrees_with_the_formulas(pool);
      test_masks(pool);
      test_a_row_does_not_depend_on_its_batch(pool);
      test_index_hidden_states_profile_and_observer(pool);
      test_static_ranges(pool);
      test_input_scales_tame_an_outlier(pool);
      test_quantized_weights_give_the_same_product(pool);
      test_large_weights_do_not_overflow(pool);
      test_weights_that_are_added_in_16_bits_keep_the_limit(pool);
      test_extreme_values(pool);
      test_embeddings(pool);
      test_bad_input_is_refused(pool);
      test_no_rows(pool);
      test_a_profile_of_an_older_caller_is_not_overrun(pool);
      test_concurrent_calls(pool);
      fb_pool_destroy(pool);
    }
    for (const int threads : {2, 3, 20}) test_any_number_of_threads_and_rows_gives_the_same(threads);
    test_threads_of_a_host();
  }
  where = "any";
  test_forced_isa();
  return verdict();
}
