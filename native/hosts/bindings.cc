// Python's way in: arrays to pointers, one class per object of the C ABI. The GIL is released in `call` and nowhere
// else.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fusebert.h"

namespace nb = nanobind;
using nb::ndarray;

namespace {

template <class T, size_t Dimensions>
using In = ndarray<const T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
template <class T, size_t Dimensions>
using Out = ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
using AnyMatrix = ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;

void raise(fb_status status, const fb_error& error) {
  if (status == FB_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status != FB_OK) throw nb::value_error(error.message);
}

template <class F>
void call(const F& f) {
  fb_error error{};
  fb_status status;
  {
    nb::gil_scoped_release release;
    status = f(&error);
  }
  raise(status, error);
}

void expect(bool fits, const char* what) {
  if (!fits) throw nb::value_error(what);
}

// A weight as the engine hands it over: (matrix, element type, scales or None).
using Weight = std::tuple<AnyMatrix, int, std::optional<In<float, 1>>>;
using Vector = std::optional<In<float, 1>>;

fb_matrix matrix(const Weight& weight) {
  const auto& [data, type, scales] = weight;
  const size_t bytes = type == FB_F32 ? 4 : type == FB_S8 ? 1 : 2;
  expect(data.itemsize() == bytes, "a weight's elements have another size than its type says");
  expect(!scales || scales->shape(0) == data.shape(0), "a weight has another number of scales than rows");
  return {data.data(),
          static_cast<int64_t>(data.shape(0)),
          static_cast<int64_t>(data.shape(1)),
          data.stride(0),
          data.stride(1),
          scales ? scales->data() : nullptr,
          type};
}
const float* vector(const Vector& values, int64_t size) {
  expect(!values || static_cast<int64_t>(values->shape(0)) == size, "a bias or norm has another length than its rows");
  return values ? values->data() : nullptr;
}
using LinearValue = std::tuple<Weight, Vector, Vector>;  // weight, bias, input scales
using NormValue = std::tuple<Vector, Vector, float>;     // gain, bias, epsilon

fb_linear linear(const LinearValue& value) {
  const fb_matrix weight = matrix(std::get<0>(value));
  return {weight, vector(std::get<1>(value), weight.rows), vector(std::get<2>(value), weight.columns)};
}
fb_norm norm(const NormValue& value, int64_t width) {
  return {vector(std::get<0>(value), width), vector(std::get<1>(value), width), std::get<2>(value)};
}

template <class Value>
Value get(const nb::dict& dict, const char* key) {
  return nb::cast<Value>(dict[key]);
}

// OpenMP's threads, which GOMP_parallel (libgomp's, also in other OpenMP libraries) sets to work.
void with_openmp(void* gomp_parallel, int32_t count, void (*task)(void*), void* data) {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  reinterpret_cast<Parallel>(gomp_parallel)(task, data, static_cast<unsigned>(count), 0);
}

struct Pool {
  Pool(int threads, std::optional<uintptr_t> gomp_parallel) : host(reinterpret_cast<void*>(gomp_parallel.value_or(0))) {
    call([&](fb_error* error) {
      return host ? fb_pool_borrow(threads, with_openmp, &handle, error) : fb_pool_create(threads, &handle, error);
    });
  }
  ~Pool() { fb_pool_destroy(handle); }
  Pool(const Pool&) = delete;
  fb_pool* handle = nullptr;
  void* host;
};

struct Encoder {
  Encoder(int hidden, const std::vector<nb::dict>& dicts, Pool& pool) : hidden(hidden) {
    // The casts below may convert, and what they made must live until the encoder has packed it.
    std::vector<std::map<std::string, LinearValue>> linears;
    std::vector<std::map<std::string, NormValue>> norms;
    std::vector<fb_layer> views;
    for (const nb::dict& dict : dicts) {
      auto& l = linears.emplace_back();
      auto& n = norms.emplace_back();
      for (const char* key : {"query", "key", "value", "attention_out", "ffn_in", "ffn_out"})
        l[key] = get<LinearValue>(dict, key);
      for (const char* key : {"attention_norm", "output_norm"}) n[key] = get<NormValue>(dict, key);
      fb_layer view{};
      view.query = linear(l["query"]), view.key = linear(l["key"]), view.value = linear(l["value"]);
      view.attention_out = linear(l["attention_out"]), view.ffn_in = linear(l["ffn_in"]),
      view.ffn_out = linear(l["ffn_out"]);
      view.attention_norm = norm(n["attention_norm"], hidden), view.output_norm = norm(n["output_norm"], hidden);
      const auto plans = get<std::vector<std::tuple<int, float, float>>>(dict, "plan");
      expect(plans.size() == FB_PRODUCTS, "a layer's plan names four products");
      for (size_t i = 0; i < FB_PRODUCTS; ++i)
        view.plan[i] = {std::get<0>(plans[i]), std::get<1>(plans[i]), std::get<2>(plans[i])};
      view.attention = get<int>(dict, "attention"), view.heads = get<int>(dict, "heads");
      view.activation = get<int>(dict, "activation"), view.scale = get<float>(dict, "scale");
      widest_heads = std::max(widest_heads, view.heads);
      views.push_back(view);
    }
    const fb_encoder_spec spec{sizeof spec, sizeof(fb_layer), views.data(), static_cast<int32_t>(views.size()), hidden};
    call([&](fb_error* error) { return fb_encoder_create(&spec, pool.handle, &handle, error); });
  }
  ~Encoder() { fb_encoder_destroy(handle); }
  Encoder(const Encoder&) = delete;

  void run(In<float, 2> input, Out<float, 2> output, In<int64_t, 1> offsets, Pool& pool,
           std::optional<In<uint8_t, 1>> visible,
           std::optional<ndarray<const float, nb::ndim<4>, nb::device::cpu>> bias,
           std::vector<Out<float, 2>> hidden_states, std::optional<Out<double, 1>> profile,
           std::optional<nb::callable> observer, std::optional<In<int64_t, 1>> index) const {
    const size_t stored = input.shape(0), rows = index ? index->shape(0) : stored, sequences = offsets.shape(0) - 1;
    expect(offsets.shape(0) >= 1 && offsets.data()[sequences] == static_cast<int64_t>(rows),
           "the last offset must be the number of rows");
    expect(!index || std::all_of(index->data(), index->data() + rows,
                                 [&](int64_t row) { return row >= 0 && row < static_cast<int64_t>(stored); }),
           "the index points outside the input");
    expect(input.shape(1) == static_cast<size_t>(hidden), "the input's rows have another width than the encoder");
    const auto like_input = [&](const auto& a) { return a.shape(0) == stored && a.shape(1) == input.shape(1); };
    expect(like_input(output), "the output must have the input's shape");
    expect(!visible || visible->shape(0) == rows, "visible must have one flag per row");
    expect(!profile || profile->shape(0) == FB_STEPS, "the profile has one number per step");

    fb_run run{};
    run.size = sizeof run;
    run.sequences = static_cast<int64_t>(sequences);
    run.offsets = offsets.data();
    run.input = input.data(), run.output = output.data();
    run.index = index ? index->data() : nullptr;
    run.visible = visible ? visible->data() : nullptr;
    if (bias) {
      int64_t longest = 0;
      for (size_t i = 0; i < sequences; ++i) longest = std::max(longest, offsets.data()[i + 1] - offsets.data()[i]);
      expect(bias->shape(0) == sequences && static_cast<int64_t>(std::min(bias->shape(2), bias->shape(3))) >= longest,
             "the bias is smaller than the batch");
      expect(bias->shape(1) >= static_cast<size_t>(widest_heads), "the bias has fewer heads than the encoder");
      run.bias = bias->data();
      for (size_t i = 0; i < 4; ++i) run.bias_stride[i] = bias->stride(i);
    }
    std::vector<float*> states;
    for (auto& state : hidden_states) {
      expect(like_input(state), "hidden states must have the input's shape");
      states.push_back(state.data());
    }
    run.hidden_states = states.data();
    run.hidden_state_count = static_cast<int32_t>(states.size());
    run.pool = pool.handle, run.host = pool.host;
    fb_profile steps{sizeof steps, 0, {}};
    if (profile) run.profile = &steps;
    // What the observer raises waits until the call is over: no exception crosses the C ABI.
    struct Watch {
      const nb::callable* observer;
      std::exception_ptr raised;
    } watch{observer ? &*observer : nullptr, nullptr};
    const auto show = [](void* user, int32_t layer, int32_t product, const float* data, int64_t n, int64_t width) {
      nb::gil_scoped_acquire acquire;
      auto* watch = static_cast<Watch*>(user);
      if (watch->raised) return;
      try {
        ndarray<nb::numpy, const float, nb::ndim<2>> view(data, {static_cast<size_t>(n), static_cast<size_t>(width)},
                                                          nb::none());
        (*watch->observer)(layer, product, view.cast(nb::rv_policy::copy));
      } catch (...) {
        watch->raised = std::current_exception();
      }
    };
    const fb_observer seen{&watch, show};
    if (observer) run.observer = &seen;
    call([&](fb_error* error) { return fb_encoder_run(handle, &run, error); });
    if (watch.raised) std::rethrow_exception(watch.raised);
    if (profile)
      for (size_t i = 0; i < FB_STEPS; ++i) profile->data()[i] += steps.seconds[i];
  }

  int hidden;
  int widest_heads = 1;
  fb_encoder* handle = nullptr;
};

struct Dense {
  Dense(const LinearValue& value, int activation, const std::tuple<int, float, float>& plan,
        const std::optional<NormValue>& normed, Pool& pool) {
    fb_dense_spec spec{};
    spec.size = sizeof spec;
    spec.activation = activation;
    spec.linear = linear(value);
    spec.plan = {std::get<0>(plan), std::get<1>(plan), std::get<2>(plan)};
    inputs = spec.linear.weight.columns, outputs = spec.linear.weight.rows;
    spec.has_norm = normed.has_value();
    if (normed) spec.norm = norm(*normed, outputs);
    call([&](fb_error* error) { return fb_dense_create(&spec, pool.handle, &handle, error); });
  }
  ~Dense() { fb_dense_destroy(handle); }
  Dense(const Dense&) = delete;

  void run(In<float, 2> input, Out<float, 2> output, Pool& pool) const {
    expect(static_cast<int64_t>(input.shape(1)) == inputs && static_cast<int64_t>(output.shape(1)) == outputs &&
               input.shape(0) == output.shape(0),
           "the rows do not fit the product");
    const auto rows = static_cast<int64_t>(input.shape(0));
    call([&](fb_error* error) { return fb_dense_run(handle, input.data(), rows, output.data(), pool.handle, error); });
  }

  int64_t inputs = 0, outputs = 0;
  fb_dense* handle = nullptr;
};

struct Embedding {
  Embedding(const Weight& word, const Weight& position, const std::optional<Weight>& kind, const NormValue& normed)
      : tables{word, position}, has_kinds(kind.has_value()) {
    if (kind) tables.push_back(*kind);
    fb_embedding_spec spec{};
    spec.size = sizeof spec;
    spec.word = matrix(word), spec.position = matrix(position);
    if (kind) spec.kind = matrix(*kind);
    spec.norm = norm(normed, spec.word.columns);
    width = spec.word.columns;
    call([&](fb_error* error) { return fb_embedding_create(&spec, &handle, error); });
  }
  ~Embedding() { fb_embedding_destroy(handle); }
  Embedding(const Embedding&) = delete;

  void run(In<int64_t, 1> ids, In<int64_t, 1> positions, std::optional<In<int64_t, 1>> kinds, Out<float, 2> output,
           Pool& pool) const {
    const size_t rows = ids.shape(0);
    expect(positions.shape(0) == rows && kinds.has_value() == has_kinds && (!kinds || kinds->shape(0) == rows) &&
               output.shape(0) == rows && static_cast<int64_t>(output.shape(1)) == width,
           "ids, positions, types and output must have one row per token");
    call([&](fb_error* error) {
      return fb_embedding_run(handle, static_cast<int64_t>(rows), ids.data(), positions.data(),
                              kinds ? kinds->data() : nullptr, output.data(), pool.handle, error);
    });
  }

  std::vector<Weight> tables;  // used where they are, so kept alive
  bool has_kinds;
  int64_t width = 0;
  fb_embedding* handle = nullptr;
};

void quantize(const Weight& weight, Out<int8_t, 2> values, Out<float, 1> scales, Pool& pool) {
  const fb_matrix floats = matrix(weight);
  expect(static_cast<int64_t>(values.shape(0)) == floats.rows &&
             static_cast<int64_t>(values.shape(1)) == floats.columns &&
             static_cast<int64_t>(scales.shape(0)) == floats.rows,
         "values and scales must fit the weight");
  call([&](fb_error* error) { return fb_quantize(&floats, values.data(), scales.data(), pool.handle, error); });
}

std::string isa() {
  const char* name = nullptr;
  call([&](fb_error* error) { return fb_isa(&name, error); });
  return name;
}

template <class F>
std::vector<std::string> names(const F& name) {
  std::vector<std::string> list;
  for (int i = 0; name(i); ++i) list.push_back(name(i));
  return list;
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a model that is still in use when Python ends is no leak
  nb::class_<Pool>(m, "Pool")
      .def(nb::init<int, std::optional<uintptr_t>>(), nb::arg("threads"), nb::arg("gomp_parallel") = nb::none())
      .def_prop_ro("threads", [](const Pool& p) { return fb_pool_threads(p.handle); });
  nb::class_<Encoder>(m, "Encoder")
      .def(nb::init<int, const std::vector<nb::dict>&, Pool&>())
      .def_prop_ro("bytes", [](const Encoder& e) { return fb_encoder_bytes(e.handle); })
      .def("run", &Encoder::run, nb::arg("input"), nb::arg("output"), nb::arg("offsets"), nb::arg("pool"),
           nb::arg("visible") = nb::none(), nb::arg("bias") = nb::none(),
           nb::arg("hidden_states") = std::vector<Out<float, 2>>(), nb::arg("profile") = nb::none(),
           nb::arg("observer") = nb::none(), nb::arg("index") = nb::none());
  nb::class_<Dense>(m, "Dense")
      .def(nb::init<const LinearValue&, int, const std::tuple<int, float, float>&, const std::optional<NormValue>&,
                    Pool&>(),
           nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg())
      .def_ro("outputs", &Dense::outputs)
      .def_prop_ro("bytes", [](const Dense& d) { return fb_dense_bytes(d.handle); })
      .def("run", &Dense::run);
  nb::class_<Embedding>(m, "Embedding")
      .def(nb::init<const Weight&, const Weight&, const std::optional<Weight>&, const NormValue&>(), nb::arg(),
           nb::arg(), nb::arg().none(), nb::arg())
      .def("run", &Embedding::run, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  m.def("quantize", &quantize);
  m.def(
      "cores", [](const std::optional<std::string>& root) { return fb_cores(root ? root->c_str() : nullptr); },
      nb::arg("root") = nb::none());
  m.def("isa", &isa);
  m.def("isas", [] { return names([](int i) { return fb_isa_supported(i); }); });
  m.def("steps", [] { return names([](int i) { return fb_step_name(i); }); });
}
