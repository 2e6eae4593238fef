// Python's way in: arrays to pointers, one class per object of the C ABI. The GIL is released in `without_gil` and
// nowhere else.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "fusebert.h"
#include "parts.h"

namespace nb = nanobind;
using nb::ndarray;
using namespace fusebert;

namespace {

using Clock = std::chrono::steady_clock;

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
fb_status without_gil(const F& f) {
  nb::gil_scoped_release release;
  return f();
}

template <class F>
void call(const F& f) {
  fb_error error{};
  raise(without_gil([&] { return f(&error); }), error);
}

void expect(bool fits, const char* what) {
  if (!fits) throw nb::value_error(what);
}

// ---- dictionaries by the names of the C ABI's fields -> its structs; None and a missing key: not there ----

using Vector = std::optional<In<float, 1>>;
// What the structs point to: casts may make new arrays, which must live until the core has read them.
struct Kept {
  std::deque<AnyMatrix> matrices;
  std::deque<In<float, 1>> vectors;
  std::deque<In<float, 2>> tables;
};

std::optional<nb::dict> part(const nb::dict& dict, const char* key) {
  return dict.contains(key) && !dict[key].is_none() ? std::optional(nb::cast<nb::dict>(dict[key])) : std::nullopt;
}
template <class Value>
Value get(const nb::dict& dict, const char* key, Value missing) {
  return dict.contains(key) && !dict[key].is_none() ? nb::cast<Value>(dict[key]) : missing;
}

// The number of a name, which name_of gives.
int32_t number_of(const nb::dict& dict, const char* key, const char* (*name_of)(int32_t)) {
  const auto name = get<std::string>(dict, key, name_of(0));
  int32_t number = 0;
  while (name_of(number) && name != name_of(number)) ++number;
  if (!name_of(number)) throw nb::value_error((std::string(key) + " '" + name + "' is unknown").c_str());
  return number;
}

const float* vector(const Vector& values, int64_t size, Kept& kept) {
  if (!values) return nullptr;
  expect(static_cast<int64_t>(values->shape(0)) == size, "a bias, gain or scale has another length than its rows");
  kept.vectors.push_back(*values);
  return values->data();
}
const float* vector(const nb::dict& dict, const char* key, int64_t size, Kept& kept) {
  return vector(get<Vector>(dict, key, std::nullopt), size, kept);
}

// NumPy has no bf16: that is handed over as its bits.
int32_t element_type(const AnyMatrix& matrix) {
  if (matrix.dtype() == nb::dtype<float>()) return FB_F32;
  if (matrix.dtype() == nb::dtype<int8_t>()) return FB_S8;
  if (matrix.dtype() == nb::dtype<uint16_t>()) return FB_BF16;
  expect(matrix.dtype().bits == 16, "a weight is not float32, float16, bfloat16 (as uint16) or int8");
  return FB_F16;
}
fb_matrix matrix(const AnyMatrix& data, const Vector& scales, Kept& kept) {
  kept.matrices.push_back(data);
  const auto rows = static_cast<int64_t>(data.shape(0)), columns = static_cast<int64_t>(data.shape(1));
  return {sizeof(fb_matrix), element_type(data), data.data(),    rows,
          columns,           data.stride(0),     data.stride(1), vector(scales, rows, kept)};
}

LinearParts linear(const nb::dict& dict, Kept& kept) {
  LinearParts parts;
  parts.weight = matrix(nb::cast<AnyMatrix>(dict["weight"]), get<Vector>(dict, "scales", std::nullopt), kept);
  parts.linear.precision = number_of(dict, "precision", fb_type_name);
  parts.linear.bias = vector(dict, "bias", parts.weight.rows, kept);
  parts.linear.input_scales = vector(dict, "input_scales", parts.weight.columns, kept);
  parts.linear.low = get<float>(dict, "low", 0), parts.linear.high = get<float>(dict, "high", 0);
  return parts;
}
fb_norm norm(const nb::dict& dict, int64_t width, Kept& kept) {
  return {sizeof(fb_norm),
          number_of(dict, "kind", fb_norm_name),
          vector(dict, "gain", width, kept),
          vector(dict, "bias", width, kept),
          nb::cast<float>(dict["epsilon"]),
          static_cast<int32_t>(width)};
}

// [rows, columns] of floats that a position has.
const float* table(const nb::dict& dict, const char* key, int64_t* rows, int64_t* columns, Kept& kept) {
  const auto given = get<std::optional<In<float, 2>>>(dict, key, std::nullopt);
  if (!given) return nullptr;
  kept.tables.push_back(*given);
  *rows = static_cast<int64_t>(given->shape(0)), *columns = static_cast<int64_t>(given->shape(1));
  return given->data();
}

fb_position position(const nb::dict& dict, int32_t heads, int64_t width, Kept& kept) {
  auto made = unset<fb_position>();
  made.kind = number_of(dict, "kind", fb_position_name);
  int64_t rows = 0, columns = 0;
  if (made.kind == FB_ROTARY) {
    made.table[0] = table(dict, "frequencies", &rows, &made.count, kept);
    expect(rows == 1, "frequencies are one row");
  } else if (made.kind == FB_RELATIVE) {
    made.table[0] = table(dict, "table", &rows, &columns, kept);
    expect(rows == heads && columns % 2, "a relative table has a row per head and an odd number of columns");
    made.reach = columns / 2;
  } else {
    made.reach = get<int64_t>(dict, "reach", 0), made.buckets = get<int32_t>(dict, "buckets", 0);
    const char* const names[] = {"content_to_position", "position_to_content"};
    for (int i = 0; i < 2; ++i) {
      made.table[i] = table(dict, names[i], &rows, &columns, kept);
      expect(!made.table[i] || (columns == width && (!made.count || made.count == rows)),
             "tables of positions have the width of all queries, and as many rows each");
      made.count = std::max(made.count, rows);
    }
  }
  return made;
}

// A block's parts from its dictionary and that of its body.
struct Source {
  const nb::dict &block, &body;
  int64_t hidden;
  Kept& kept;

  std::optional<LinearParts> linear(const char* name) {
    const auto given = part(body, name);
    return given ? std::optional(::linear(*given, kept)) : std::nullopt;
  }
  std::optional<fb_norm> norm(const char* name) {
    if (const auto given = part(block, name)) return ::norm(*given, hidden, kept);
    const auto of_heads = part(body, name);  // as wide as its gain
    if (!of_heads) return std::nullopt;
    Vector numbers = get<Vector>(*of_heads, "gain", std::nullopt);
    if (!numbers) numbers = get<Vector>(*of_heads, "bias", std::nullopt);
    return ::norm(*of_heads, numbers ? static_cast<int64_t>(numbers->shape(0)) : 0, kept);
  }
};

int32_t add_block(Blocks& blocks, const nb::dict& dict, int64_t hidden, Kept& kept) {
  const auto attention = part(dict, "attention"), feed_forward = part(dict, "feed_forward");
  expect(attention.has_value() != feed_forward.has_value(), "a block has either attention or feed_forward");
  Source source{dict, attention ? *attention : *feed_forward, hidden, kept};
  BlockParts& parts = blocks.emplace_back(attention ? BodyKind::attention : BodyKind::feed_forward, source);
  parts.block.adds_twice = get<bool>(dict, "adds_twice", false);
  if (feed_forward) parts.feed_forward.activation = number_of(*feed_forward, "activation", fb_activation_name);
  if (!attention) return 1;
  parts.attention.heads = nb::cast<int32_t>((*attention)["heads"]);
  parts.attention.key_heads = get<int32_t>(*attention, "key_heads", 0);
  parts.attention.precision = number_of(*attention, "precision", fb_type_name);
  parts.attention.bytes = get<int32_t>(*attention, "bytes", FB_NEVER);
  parts.attention.scale = get<float>(*attention, "scale", 0);
  parts.attention.window = get<int32_t>(*attention, "window", 0);
  if (const auto given = part(*attention, "position"); given && parts.attention.query) {
    parts.position = position(*given, parts.attention.heads, parts.attention.query->weight->rows, kept);
    parts.attention.position = &parts.position;
  }
  return parts.attention.heads;
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
  Encoder(int hidden, const std::vector<nb::dict>& dicts, const std::vector<int32_t>& order,
          const std::optional<nb::dict>& final, Pool& pool)
      : hidden(hidden) {
    Kept kept;
    Blocks blocks;
    std::vector<const fb_block*> pointers;
    for (const nb::dict& dict : dicts) {
      widest_heads = std::max(widest_heads, add_block(blocks, dict, hidden, kept));
      pointers.push_back(&blocks.back().block);
    }
    auto spec = unset<fb_encoder_spec>();
    spec.hidden = hidden;
    spec.blocks = pointers.data(), spec.block_count = static_cast<int32_t>(pointers.size());
    spec.order = order.data(), spec.order_count = static_cast<int32_t>(order.size());
    const fb_norm last = final ? norm(*final, hidden, kept) : fb_norm{};
    if (final) spec.final = &last;
    call([&](fb_error* error) { return fb_encoder_create(&spec, pool.handle, &handle, error); });
  }
  ~Encoder() { fb_encoder_destroy(handle); }
  Encoder(const Encoder&) = delete;

  void run(In<float, 2> input, Out<float, 2> output, In<int64_t, 1> offsets, Pool& pool,
           std::optional<In<uint8_t, 1>> visible,
           std::optional<ndarray<const float, nb::ndim<4>, nb::device::cpu>> bias, const std::vector<int32_t>& taps,
           std::vector<Out<float, 2>> states, std::optional<Out<double, 1>> profile,
           std::optional<nb::callable> observer, std::optional<In<int64_t, 1>> index,
           std::optional<In<int32_t, 1>> positions) const {
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
    expect(!positions || positions->shape(0) == rows, "positions must have one number per row");
    expect(!profile || profile->shape(0) == FB_STEPS, "the profile has one number per step");

    auto run = unset<fb_run>();
    run.sequences = static_cast<int64_t>(sequences);
    run.offsets = offsets.data();
    run.input = input.data(), run.output = output.data();
    run.index = index ? index->data() : nullptr;
    run.visible = visible ? visible->data() : nullptr;
    run.positions = positions ? positions->data() : nullptr;
    if (bias) {
      int64_t longest = 0;
      for (size_t i = 0; i < sequences; ++i) longest = std::max(longest, offsets.data()[i + 1] - offsets.data()[i]);
      expect(bias->shape(0) == sequences && static_cast<int64_t>(std::min(bias->shape(2), bias->shape(3))) >= longest,
             "the bias is smaller than the batch");
      expect(bias->shape(1) >= static_cast<size_t>(widest_heads), "the bias has fewer heads than the encoder");
      run.bias = bias->data();
      for (size_t i = 0; i < 4; ++i) run.bias_stride[i] = bias->stride(i);
    }
    expect(taps.size() == states.size(), "there must be one state for each tap");
    std::vector<float*> tapped;
    for (auto& state : states) {
      expect(like_input(state), "states must have the input's shape");
      tapped.push_back(state.data());
    }
    run.taps = taps.data(), run.states = tapped.data();
    run.tap_count = static_cast<int32_t>(taps.size());
    run.pool = pool.handle, run.host = pool.host;
    fb_profile steps{sizeof steps, 0, {}};
    if (profile) run.profile = &steps;
    // What the observer or an interrupt raises waits until the call is over: no exception crosses the C ABI.
    struct Watch {
      const nb::callable* observer;
      std::exception_ptr raised;
      Clock::time_point asked;
    } watch{observer ? &*observer : nullptr, nullptr, Clock::now()};
    const auto show = [](void* user, int32_t place, int32_t product, const float* data, int64_t n, int64_t width) {
      nb::gil_scoped_acquire acquire;
      auto* watch = static_cast<Watch*>(user);
      if (watch->raised) return;
      try {
        ndarray<nb::numpy, const float, nb::ndim<2>> view(data, {static_cast<size_t>(n), static_cast<size_t>(width)},
                                                          nb::none());
        (*watch->observer)(place, product, view.cast(nb::rv_policy::copy));
      } catch (...) {
        watch->raised = std::current_exception();
      }
    };
    const fb_observer seen{sizeof seen, &watch, show};
    if (observer) run.observer = &seen;
    run.stop_user = &watch;
    run.stop = [](void* user) -> int32_t {  // rarely, because it waits for whoever holds the interpreter
      auto* watch = static_cast<Watch*>(user);
      if (watch->raised || Clock::now() - watch->asked < std::chrono::milliseconds(100))
        return watch->raised != nullptr;
      watch->asked = Clock::now();
      nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals()) watch->raised = std::make_exception_ptr(nb::python_error());
      return watch->raised != nullptr;
    };
    fb_error error{};
    const fb_status status = without_gil([&] { return fb_encoder_run(handle, &run, &error); });
    if (watch.raised) std::rethrow_exception(watch.raised);
    raise(status, error);
    if (profile)
      for (size_t i = 0; i < FB_STEPS; ++i) profile->data()[i] += steps.seconds[i];
  }

  int hidden;
  int widest_heads = 1;
  fb_encoder* handle = nullptr;
};

struct Dense {
  explicit Dense(const nb::dict& dict, Pool& pool) {
    Kept kept;
    LinearParts parts = linear(nb::cast<nb::dict>(dict["linear"]), kept);
    const auto normed = part(dict, "norm");
    parts.linear.weight = &parts.weight;
    inputs = parts.weight.columns, outputs = parts.weight.rows;
    auto spec = unset<fb_dense_spec>();
    spec.activation = number_of(dict, "activation", fb_activation_name);
    spec.linear = &parts.linear;
    const fb_norm after = normed ? norm(*normed, outputs, kept) : fb_norm{};
    if (normed) spec.norm = &after;
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
  explicit Embedding(const nb::dict& dict) {
    std::optional<fb_matrix> tables[3];
    const char* const names[] = {"word", "position", "token_type"};
    for (int i = 0; i < 3; ++i)
      if (const auto table = get<std::optional<AnyMatrix>>(dict, names[i], std::nullopt))
        tables[i] = matrix(*table, std::nullopt, kept);
    const auto at = [&](int i) { return tables[i] ? &*tables[i] : nullptr; };
    expect(at(0), "embeddings need a word table");
    width = at(0)->columns, has_positions = at(1), has_types = at(2);
    const auto normed = part(dict, "norm");
    const fb_norm after = normed ? norm(*normed, width, kept) : fb_norm{};
    const fb_embedding_spec spec{
        sizeof spec, at(0), at(1), at(2), normed ? &after : nullptr, get<float>(dict, "scale", 0)};
    call([&](fb_error* error) { return fb_embedding_create(&spec, &handle, error); });
  }
  ~Embedding() { fb_embedding_destroy(handle); }
  Embedding(const Embedding&) = delete;

  void run(In<int64_t, 1> ids, std::optional<In<int64_t, 1>> positions, std::optional<In<int64_t, 1>> token_types,
           Out<float, 2> output, Pool& pool) const {
    const size_t rows = ids.shape(0);
    const auto fits = [&](const auto& index, bool wanted) {
      return index.has_value() == wanted && (!index || index->shape(0) == rows);
    };
    expect(fits(positions, has_positions) && fits(token_types, has_types) && output.shape(0) == rows &&
               static_cast<int64_t>(output.shape(1)) == width,
           "ids, positions, types and output must have one row per token");
    const auto data = [](const auto& index) { return index ? index->data() : nullptr; };
    call([&](fb_error* error) {
      return fb_embedding_run(handle, static_cast<int64_t>(rows), ids.data(), data(positions), data(token_types),
                              output.data(), pool.handle, error);
    });
  }

  Kept kept;  // tables are used where they are
  bool has_positions, has_types;
  int64_t width = 0;
  fb_embedding* handle = nullptr;
};

void quantize(const AnyMatrix& weight, Out<int8_t, 2> values, Out<float, 1> scales, Pool& pool) {
  Kept kept;
  const fb_matrix floats = matrix(weight, std::nullopt, kept);
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
      .def(nb::init<int, const std::vector<nb::dict>&, const std::vector<int32_t>&, const std::optional<nb::dict>&,
                    Pool&>(),
           nb::arg("hidden"), nb::arg("blocks"), nb::arg("order"), nb::arg("final").none(), nb::arg("pool"))
      .def_prop_ro("bytes", [](const Encoder& e) { return fb_encoder_bytes(e.handle); })
      .def("run", &Encoder::run, nb::arg("input"), nb::arg("output"), nb::arg("offsets"), nb::arg("pool"),
           nb::arg("visible") = nb::none(), nb::arg("bias") = nb::none(), nb::arg("taps") = std::vector<int32_t>(),
           nb::arg("states") = std::vector<Out<float, 2>>(), nb::arg("profile") = nb::none(),
           nb::arg("observer") = nb::none(), nb::arg("index") = nb::none(), nb::arg("positions") = nb::none());
  nb::class_<Dense>(m, "Dense")
      .def(nb::init<const nb::dict&, Pool&>())
      .def_ro("outputs", &Dense::outputs)
      .def_prop_ro("bytes", [](const Dense& d) { return fb_dense_bytes(d.handle); })
      .def("run", &Dense::run);
  nb::class_<Embedding>(m, "Embedding")
      .def(nb::init<const nb::dict&>())
      .def("run", &Embedding::run, nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg());
  m.def("quantize", &quantize);
  m.def(
      "cores", [](const std::optional<std::string>& root) { return fb_cores(root ? root->c_str() : nullptr); },
      nb::arg("root") = nb::none());
  m.def("isa", &isa);
  m.def("isas", [] { return names([](int i) { return fb_isa_supported(i); }); });
  m.def("activations", [] { return names([](int i) { return fb_activation_name(i); }); });
  m.def("steps", [] { return names([](int i) { return fb_step_name(i); }); });
}
