// The border: C structs in, exceptions turned into status codes and sentences.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "encoder.h"
#include "error.h"
#include "fusebert.h"

using namespace fusebert;

struct fb_encoder : Encoder {
  using Encoder::Encoder;
};
struct fb_dense {
  fb_dense(const fb_dense_spec& spec, const Pool::Turn& turn)
      : kernels_(kernels()),
        product(kernels_, {&spec.linear, 1}, spec.plan, "dense", store, turn),
        activation(spec.activation) {
    if (spec.activation < FB_IDENTITY || spec.activation > FB_TANH)
      throw Invalid("dense: unknown activation %d", spec.activation);
    if (spec.has_norm) norm = std::make_unique<Norm>(spec.norm, product.outputs(), "dense norm");
  }
  const Kernels& kernels_;
  Arena store{0};
  Product product;
  std::unique_ptr<Norm> norm;
  int32_t activation;
};

struct fb_embedding {
  explicit fb_embedding(const fb_embedding_spec& spec)
      : kernels_(kernels()),
        word(spec.word),
        position(spec.position),
        kind(spec.kind),
        norm(spec.norm, checked_width(spec), "embedding norm") {}
  static int64_t checked_width(const fb_embedding_spec& spec) {
    check_matrix(spec.word, "word table");
    check_matrix(spec.position, "position table");
    if (spec.kind.data) check_matrix(spec.kind, "token type table");
    for (const fb_matrix& table : {spec.position, spec.kind})
      if (table.data && table.columns != spec.word.columns)
        throw Invalid("embedding tables are %lld and %lld wide", static_cast<long long>(spec.word.columns),
                      static_cast<long long>(table.columns));
    return spec.word.columns;
  }
  void run(int64_t rows, const int64_t* ids, const int64_t* positions, const int64_t* kinds, float* output,
           const Pool::Turn& turn) const;

  const Kernels& kernels_;
  fb_matrix word, position, kind;
  Norm norm;
};

namespace {

fb_status fail(fb_error* error, fb_status status, const char* message) {
  if (error) std::snprintf(error->message, sizeof error->message, "%s", message);
  return status;
}

template <class F>
fb_status guard(fb_error* error, const F& f) {
  try {
    f();
    return FB_OK;
  } catch (const Invalid& e) {
    return fail(error, FB_INVALID, e.what());
  } catch (const std::bad_alloc&) {
    return fail(error, FB_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return fail(error, FB_INTERNAL, e.what());
  } catch (...) {
    return fail(error, FB_INTERNAL, "unknown failure");
  }
}

void need(const void* pointer, const char* name) {
  if (!pointer) throw Invalid("%s is missing", name);
}

// The caller's struct, whatever its version: fields it does not have are zero.
template <class T>
T versioned(const T* given, const char* name) {
  if (!given || given->size < sizeof(uint32_t)) throw Invalid("%s is missing or has no size", name);
  T own{};
  std::memcpy(&own, given, std::min<size_t>(given->size, sizeof own));
  return own;
}

void check_indices(const char* name, const fb_matrix& table, const int64_t* index, int64_t rows) {
  need(index, name);
  for (int64_t r = 0; r < rows; ++r)
    if (index[r] < 0 || index[r] >= table.rows)
      throw Invalid("%s %lld is outside 0 to %lld", name, static_cast<long long>(index[r]),
                    static_cast<long long>(table.rows - 1));
}

}  // namespace

void fb_embedding::run(int64_t rows, const int64_t* ids, const int64_t* positions, const int64_t* kinds, float* output,
                       const Pool::Turn& turn) const {
  check_indices("token id", word, ids, rows);
  check_indices("position", position, positions, rows);
  if (kind.data) check_indices("token type", kind, kinds, rows);
  const int64_t width = word.columns;
  constexpr int64_t kBlock = 64;
  turn.run((rows + kBlock - 1) / kBlock, [&](int64_t task, Arena& arena) {
    float* part = arena.take<float>(width);
    const auto add = [&](const fb_matrix& table, int64_t row, float* to) {
      read_row(table, row, part);
      for (int64_t i = 0; i < width; ++i) to[i] += part[i];
    };
    const int64_t first = task * kBlock, count = std::min(kBlock, rows - first);
    for (int64_t r = first; r < first + count; ++r) {
      float* to = output + r * width;
      read_row(word, ids[r], to);
      if (kind.data) add(kind, kinds[r], to);
      add(position, positions[r], to);
    }
    norm.apply(kernels_, output + first * width, output + first * width, count, width);
  });
}

namespace {
fb_status make_pool(int32_t threads, fb_parallel parallel, fb_pool** pool, fb_error* error) {
  return guard(error, [&] {
    need(pool, "pool");
    if (threads < 0 || threads > 1024) throw Invalid("%d threads; give 1 to 1024, or 0 for all usable cores", threads);
    *pool = new fb_pool(threads ? threads : usable_cores(""), parallel);
  });
}
}  // namespace

fb_status fb_pool_create(int32_t threads, fb_pool** pool, fb_error* error) {
  return make_pool(threads, nullptr, pool, error);
}
fb_status fb_pool_borrow(int32_t threads, fb_parallel parallel, fb_pool** pool, fb_error* error) {
  const fb_status told = guard(error, [&] { need(reinterpret_cast<const void*>(parallel), "parallel"); });
  return told == FB_OK ? make_pool(threads, parallel, pool, error) : told;
}
int32_t fb_pool_threads(const fb_pool* pool) { return pool ? pool->threads() : 1; }
void fb_pool_destroy(fb_pool* pool) {
  if (pool && pool->at_home()) delete pool;
}
int32_t fb_cores(const char* root) { return usable_cores(root ? root : ""); }

fb_status fb_isa(const char** name, fb_error* error) {
  return guard(error, [&] {
    need(name, "name");
    *name = kernels().name;
  });
}
const char* fb_isa_supported(int32_t index) {
  const Kernels* found = index < 0 ? nullptr : supported_kernels(index);
  return found ? found->name : nullptr;
}

fb_status fb_encoder_create(const fb_encoder_spec* spec, fb_pool* pool, fb_encoder** encoder, fb_error* error) {
  return guard(error, [&] {
    need(encoder, "encoder");
    *encoder = new fb_encoder(versioned(spec, "spec"), Pool::Turn(pool));
  });
}
int64_t fb_encoder_bytes(const fb_encoder* encoder) { return encoder ? encoder->bytes() : 0; }
void fb_encoder_destroy(fb_encoder* encoder) { delete encoder; }
fb_status fb_encoder_run(const fb_encoder* encoder, const fb_run* given, fb_error* error) {
  return guard(error, [&] {
    need(encoder, "encoder");
    fb_run run = versioned(given, "run");
    if (run.observer) need(reinterpret_cast<const void*>(run.observer->rows), "observer");
    fb_profile* const profile = run.profile;
    if (!profile) return encoder->run(run);
    fb_profile own = versioned(profile, "profile");
    run.profile = &own;
    encoder->run(run);
    const uint32_t size = profile->size;
    own.size = size;
    std::memcpy(profile, &own, std::min<size_t>(size, sizeof own));
  });
}

const char* fb_step_name(int32_t step) {
  static const char* const names[] = {"qkv", "attention", "attention_out", "ffn_in", "ffn_out"};
  return step >= 0 && step < FB_STEPS ? names[step] : nullptr;
}

fb_status fb_dense_create(const fb_dense_spec* spec, fb_pool* pool, fb_dense** dense, fb_error* error) {
  return guard(error, [&] {
    need(dense, "dense");
    *dense = new fb_dense(versioned(spec, "spec"), Pool::Turn(pool));
  });
}
fb_status fb_dense_run(const fb_dense* dense, const float* input, int64_t rows, float* output, fb_pool* pool,
                       fb_error* error) {
  return guard(error, [&] {
    need(dense, "dense");
    if (rows < 0) throw Invalid("%lld rows", static_cast<long long>(rows));
    if (rows > 0) need(input, "input"), need(output, "output");
    const int64_t width = dense->product.outputs();
    const auto finish = [&](int64_t first, int64_t count) {
      float* at = output + first * width;
      if (dense->norm) dense->norm->apply(dense->kernels_, at, at, count, width);
    };
    dense->product.run({input, dense->product.inputs(), rows, {output, width, nullptr, dense->activation}},
                       Pool::Turn(pool), finish);
  });
}
int64_t fb_dense_bytes(const fb_dense* dense) { return dense ? dense->product.bytes() : 0; }
void fb_dense_destroy(fb_dense* dense) { delete dense; }

fb_status fb_embedding_create(const fb_embedding_spec* spec, fb_embedding** embedding, fb_error* error) {
  return guard(error, [&] {
    need(embedding, "embedding");
    *embedding = new fb_embedding(versioned(spec, "spec"));
  });
}
fb_status fb_embedding_run(const fb_embedding* embedding, int64_t rows, const int64_t* ids, const int64_t* positions,
                           const int64_t* kinds, float* output, fb_pool* pool, fb_error* error) {
  return guard(error, [&] {
    need(embedding, "embedding");
    if (rows < 0) throw Invalid("%lld rows", static_cast<long long>(rows));
    if (rows > 0) need(output, "output"), embedding->run(rows, ids, positions, kinds, output, Pool::Turn(pool));
  });
}
void fb_embedding_destroy(fb_embedding* embedding) { delete embedding; }

fb_status fb_quantize(const fb_matrix* matrix, int8_t* values, float* scales, fb_pool* pool, fb_error* error) {
  return guard(error, [&] {
    need(matrix, "matrix");
    check_matrix(*matrix, "matrix");
    need(values, "values"), need(scales, "scales");
    const Kernels& table = kernels();
    Pool::Turn(pool).run(matrix->rows, [&](int64_t row, Arena& arena) {
      float* floats = arena.take<float>(matrix->columns);
      read_row(*matrix, row, floats);
      check_finite(floats, matrix->columns, "row " + std::to_string(row));
      scales[row] = table.quantize_weights(floats, matrix->columns, values + row * matrix->columns);
    });
  });
}
