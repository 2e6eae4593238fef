#include "encoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

#include "error.h"

namespace fusebert {
namespace {

// Sequences run through all layers together until they have this many rows; then the next wave begins. The buffers of a
// wave stay in the last-level cache, and memory does not grow with the batch.
constexpr int64_t kWaveRows = 1024;
constexpr int64_t kLargestRows = int64_t{1} << 40;

void check_layer(const fb_layer& layer, int64_t hidden, const std::string& name) {
  const auto expect = [&](const fb_linear& linear, const char* part, int64_t rows, int64_t columns) {
    check_matrix(linear.weight, name + " " + part);
    if (linear.weight.rows != rows || linear.weight.columns != columns)
      throw Invalid("%s %s: the weight is %lld x %lld, expected %lld x %lld", name.c_str(), part,
                    static_cast<long long>(linear.weight.rows), static_cast<long long>(linear.weight.columns),
                    static_cast<long long>(rows), static_cast<long long>(columns));
  };
  if (layer.heads < 1) throw Invalid("%s: %d heads; at least one is needed", name.c_str(), layer.heads);
  const int64_t keys = layer.query.weight.rows, values = layer.value.weight.rows, inner = layer.ffn_in.weight.rows;
  for (const int64_t width : {keys, values})
    if (width < 1 || width % layer.heads)
      throw Invalid("%s: a width of %lld cannot be shared by %d heads", name.c_str(), static_cast<long long>(width),
                    layer.heads);
  expect(layer.query, "query", keys, hidden);
  expect(layer.key, "key", keys, hidden);
  expect(layer.value, "value", values, hidden);
  expect(layer.attention_out, "attention_out", hidden, values);
  expect(layer.ffn_in, "ffn_in", inner, hidden);
  expect(layer.ffn_out, "ffn_out", hidden, inner);
  if (layer.activation < FB_IDENTITY || layer.activation > FB_TANH)
    throw Invalid("%s: unknown activation %d", name.c_str(), layer.activation);
  if (layer.attention != FB_F32 && layer.attention != FB_BF16)
    throw Invalid("%s: attention runs in FB_F32 or FB_BF16, not %d", name.c_str(), layer.attention);
  if (!std::isfinite(layer.scale)) throw Invalid("%s: the score scale is not finite", name.c_str());
}

std::vector<fb_linear> qkv_of(const fb_layer& layer, int64_t hidden, const std::string& name) {
  check_layer(layer, hidden, name);
  return {layer.query, layer.key, layer.value};
}

}  // namespace

Norm::Norm(const fb_norm& norm, int64_t width, const std::string& name) : width_(width), epsilon_(norm.epsilon) {
  if (!(norm.epsilon >= 0) || !std::isfinite(norm.epsilon))
    throw Invalid("%s: epsilon %g is not one", name.c_str(), norm.epsilon);
  const auto copy = [&](const float* from, float missing, const char* part) {
    auto to = allocate<float>(width);
    if (from)
      std::copy_n(from, width, to.get());
    else
      std::fill_n(to.get(), width, missing);
    check_finite(to.get(), width, name + " " + part);
    return to;
  };
  gain_ = copy(norm.gain, 1, "gain");
  bias_ = copy(norm.bias, 0, "bias");
}

void Norm::apply(const Kernels& kernels, const float* in, float* out, int64_t rows, int64_t stride) const {
  kernels.layer_norm(in, stride, out, stride, rows, width_, {gain_.get(), bias_.get(), epsilon_});
}

Encoder::Layer::Layer(const Kernels& kernels, const fb_layer& layer, int64_t hidden, const std::string& name,
                      Arena& store, const Pool::Turn& turn)
    : qkv(kernels, qkv_of(layer, hidden, name), layer.plan[FB_QKV], name + " qkv", store, turn),
      attention_out(kernels, {&layer.attention_out, 1}, layer.plan[FB_ATTENTION_OUT], name + " attention_out", store,
                    turn),
      ffn_in(kernels, {&layer.ffn_in, 1}, layer.plan[FB_FFN_IN], name + " ffn_in", store, turn),
      ffn_out(kernels, {&layer.ffn_out, 1}, layer.plan[FB_FFN_OUT], name + " ffn_out", store, turn),
      attention_norm(layer.attention_norm, hidden, name + " attention_norm"),
      output_norm(layer.output_norm, hidden, name + " output_norm"),
      shape{layer.heads,
            layer.query.weight.rows / layer.heads,
            layer.value.weight.rows / layer.heads,
            layer.scale != 0 ? layer.scale : 1 / std::sqrt(static_cast<float>(layer.query.weight.rows / layer.heads)),
            layer.attention == FB_BF16,
            {}},
      activation(layer.activation) {}

Encoder::Encoder(const fb_encoder_spec& spec, const Pool::Turn& turn)
    : kernels_(kernels()),
      hidden_(spec.hidden),
      // About what the floats of all layers take, but no more than some: what is not used of it costs nothing.
      store_(static_cast<int64_t>(std::clamp(48.0 * spec.hidden * spec.hidden * spec.layer_count, 0.0, 33554432.0))) {
  if (spec.hidden < 1) throw Invalid("hidden size %d; at least 1 is needed", spec.hidden);
  if (spec.layer_count < 0 || (spec.layer_count > 0 && !spec.layers)) throw Invalid("layers are missing");
  for (int32_t i = 0; i < spec.layer_count; ++i) {
    fb_layer layer{};
    const auto* at =
        reinterpret_cast<const char*>(spec.layers) + static_cast<size_t>(spec.layer_size) * static_cast<size_t>(i);
    std::memcpy(&layer, at, std::min<size_t>(spec.layer_size, sizeof layer));
    layers_.emplace_back(kernels_, layer, hidden_, "layer " + std::to_string(i), store_, turn);
  }
}

int64_t Encoder::bytes() const {
  int64_t total = 0;
  for (const Layer& layer : layers_)
    total +=
        layer.qkv.bytes() + layer.attention_out.bytes() + layer.ffn_in.bytes() + layer.ffn_out.bytes() + 16 * hidden_;
  return total;
}

// Some sequences of a batch on their way through all the layers.
class Encoder::Wave {
 public:
  Wave(const Encoder& encoder, const fb_run& run, const Pool::Turn& turn, int64_t first, int64_t last)
      : encoder_(encoder),
        run_(run),
        turn_(turn),
        scope_(turn.arena()),
        first_row_(run.offsets[first]),
        rows_(run.offsets[last] - first_row_) {
    int64_t qkv = 0, context = 0, inner = 0;
    for (const Layer& layer : encoder.layers_) {
      qkv = std::max(qkv, layer.qkv.outputs());
      context = std::max(context, layer.attention_out.inputs());
      inner = std::max(inner, layer.ffn_in.outputs());
    }
    Arena& arena = turn.arena();
    x_ = arena.take<float>(rows_ * encoder.hidden_);
    sum_ = arena.take<float>(rows_ * encoder.hidden_);
    qkv_ = arena.take<float>(rows_ * qkv);
    context_ = arena.take<float>(rows_ * context);
    inner_ = arena.take<float>(rows_ * inner);
    for (int64_t i = first; i < last; ++i) sequences_.push_back(sequence(i));
  }

  void run() {
    copy_in();
    for (size_t i = 0; i < encoder_.layers_.size(); ++i) {
      const Layer& layer = encoder_.layers_[i];
      step(0, i, FB_QKV, layer.qkv, {x_, encoder_.hidden_, rows_, {qkv_, layer.qkv.outputs()}}, nullptr);
      attention(layer);
      step(2, i, FB_ATTENTION_OUT, layer.attention_out,
           {context_,
            layer.attention_out.inputs(),
            rows_,
            {sum_, encoder_.hidden_, nullptr, FB_IDENTITY, x_, encoder_.hidden_}},
           &layer.attention_norm);
      step(3, i, FB_FFN_IN, layer.ffn_in,
           {x_, encoder_.hidden_, rows_, {inner_, layer.ffn_in.outputs(), nullptr, layer.activation}}, nullptr);
      step(
          4, i, FB_FFN_OUT, layer.ffn_out,
          {inner_, layer.ffn_out.inputs(), rows_, {sum_, encoder_.hidden_, nullptr, FB_IDENTITY, x_, encoder_.hidden_}},
          &layer.output_norm);
      if (run_.hidden_state_count && run_.hidden_states[i]) copy_out(run_.hidden_states[i]);
    }
    copy_out(run_.output);
  }

 private:
  using Clock = std::chrono::steady_clock;

  Sequence sequence(int64_t i) const {
    const int64_t begin = run_.offsets[i], rows = run_.offsets[i + 1] - begin;
    Sequence sequence{begin - first_row_, rows, {}, false, run_.bias ? run_.bias + i * run_.bias_stride[0] : nullptr};
    for (int64_t r = 0; r < rows; ++r)
      if (!run_.visible || run_.visible[begin + r]) sequence.keys.push_back(r);
    if (sequence.keys.empty()) {
      sequence.uniform = true;
      sequence.keys.resize(static_cast<size_t>(rows));
      std::iota(sequence.keys.begin(), sequence.keys.end(), 0);
    }
    return sequence;
  }

  void note(int step, Clock::time_point start) {
    if (run_.profile) run_.profile->seconds[step] += std::chrono::duration<double>(Clock::now() - start).count();
  }

  // One product; with a norm, its sum with the residual is normed into x while the rows are in cache.
  void step(int number, size_t layer, int product_id, const Product& product, const Rows& rows, const Norm* norm) {
    if (run_.observer)
      run_.observer->rows(run_.observer->user, static_cast<int32_t>(layer), product_id, rows.in, rows.count,
                          product.inputs());
    const auto start = Clock::now();
    if (norm) {
      product.run(rows, turn_, [&](int64_t first, int64_t count) {
        const int64_t at = first * encoder_.hidden_;
        norm->apply(encoder_.kernels_, sum_ + at, x_ + at, count, encoder_.hidden_);
      });
    } else {
      product.run(rows, turn_);
    }
    note(number, start);
  }

  void attention(const Layer& layer) {
    const auto start = Clock::now();
    AttentionShape shape = layer.shape;
    std::copy_n(run_.bias_stride, 4, shape.bias_stride);
    attend(encoder_.kernels_, shape, sequences_, qkv_, context_, turn_);
    note(1, start);
  }

  int64_t place(int64_t r) const {
    return (run_.index ? run_.index[first_row_ + r] : first_row_ + r) * encoder_.hidden_;
  }
  void copy_in() const {
    for (int64_t r = 0; r < rows_; ++r) std::copy_n(run_.input + place(r), encoder_.hidden_, x_ + r * encoder_.hidden_);
  }
  void copy_out(float* to) const {
    for (int64_t r = 0; r < rows_; ++r) std::copy_n(x_ + r * encoder_.hidden_, encoder_.hidden_, to + place(r));
  }

  const Encoder& encoder_;
  const fb_run& run_;
  const Pool::Turn& turn_;
  Arena::Scope scope_;
  int64_t first_row_, rows_;
  float *x_, *sum_, *qkv_, *context_, *inner_;
  std::vector<Sequence> sequences_;
};

void Encoder::run(const fb_run& run) const {
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
  if (run.hidden_state_count && (run.hidden_state_count != static_cast<int32_t>(layers_.size()) || !run.hidden_states))
    throw Invalid("hidden_states needs one array for each of the %d layers", static_cast<int>(layers_.size()));

  Pool::call(run.observer ? nullptr : run.pool, run.host, [&](const Pool::Turn& turn) {
    for (int64_t first = 0, last; first < run.sequences; first = last) {
      for (last = first + 1; last < run.sequences && run.offsets[last + 1] - run.offsets[first] <= kWaveRows;) ++last;
      Wave(*this, run, turn, first, last).run();
    }
  });
  if (run.profile) ++run.profile->calls;
}

}  // namespace fusebert
