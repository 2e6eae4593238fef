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
        product(kernels_, {&spec.linear, 1}, spec.plan, "dense", turn),
        activation(spec.activation) {
    if (spec.activation < FB_IDENTITY || spec.activation > FB_TANH)
      throw Invalid("dense: unknown activation %d", spec.activation);
    if (spec.has_norm) norm = std::make_unique<Norm>(spec.norm, product.outputs(), "dense norm");
  }
  const Kernels& kernels_;
  Product product;
  std::unique_ptr<Norm> norm;
  int32_t activation;
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

// The caller's struct, whatever its version: fields it does not have are zero.
template <class T>
T versioned(const T* given, const char* name) {
  if (!given || given->size < sizeof(uint32_t)) throw Invalid("%s is missing or has no size", name);
  T own{};
  std::memcpy(&own, given, std::min<size_t>(given->size, sizeof own));
  return own;
}

}  // namespace

fb_status fb_pool_create(int32_t threads, fb_pool** pool, fb_error* error) {
  return guard(error, [&] {
    if (threads < 0 || threads > 1024) throw Invalid("%d threads; give 1 to 1024, or 0 for all usable cores", threads);
    *pool = new fb_pool(threads ? threads : usable_cores(""));
  });
}
int32_t fb_pool_threads(const fb_pool* pool) { return pool ? pool->threads() : 1; }
void fb_pool_destroy(fb_pool* pool) { delete pool; }
int32_t fb_cores(const char* root) { return usable_cores(root ? root : ""); }

fb_status fb_isa(const char** name, fb_error* error) {
  return guard(error, [&] { *name = kernels().name; });
}
const char* fb_isa_supported(int32_t index) {
  const Kernels* found = supported_kernels(index);
  return found ? found->name : nullptr;
}

fb_status fb_encoder_create(const fb_encoder_spec* spec, fb_pool* pool, fb_encoder** encoder, fb_error* error) {
  return guard(error, [&] { *encoder = new fb_encoder(versioned(spec, "spec"), Pool::Turn(pool)); });
}
int64_t fb_encoder_bytes(const fb_encoder* encoder) { return encoder->bytes(); }
void fb_encoder_destroy(fb_encoder* encoder) { delete encoder; }
fb_status fb_encoder_run(const fb_encoder* encoder, const fb_run* run, fb_error* error) {
  return guard(error, [&] { encoder->run(versioned(run, "run")); });
}

const char* fb_step_name(int32_t step) {
  static const char* const names[] = {"qkv", "attention", "attention_out", "ffn_in", "ffn_out"};
  return step >= 0 && step < FB_STEPS ? names[step] : nullptr;
}

fb_status fb_dense_create(const fb_dense_spec* spec, fb_pool* pool, fb_dense** dense, fb_error* error) {
  return guard(error, [&] { *dense = new fb_dense(versioned(spec, "spec"), Pool::Turn(pool)); });
}
fb_status fb_dense_run(const fb_dense* dense, const float* input, int64_t rows, float* output, fb_pool* pool,
                       fb_error* error) {
  return guard(error, [&] {
    if (rows < 0) throw Invalid("%lld rows", static_cast<long long>(rows));
    const int64_t width = dense->product.outputs();
    dense->product.run({input, dense->product.inputs(), rows, {output, width, nullptr, dense->activation}},
                       Pool::Turn(pool), [&](int64_t first, int64_t count) {
                         float* at = output + first * width;
                         if (dense->norm) dense->norm->apply(dense->kernels_, at, at, count, width);
                       });
  });
}
int64_t fb_dense_bytes(const fb_dense* dense) { return dense->product.bytes(); }
void fb_dense_destroy(fb_dense* dense) { delete dense; }

fb_status fb_embed(const fb_embedding* given, int64_t rows, const int64_t* ids, const int64_t* positions,
                   const int64_t* kinds, float* output, fb_pool* pool, fb_error* error) {
  return guard(error, [&] {
    const fb_embedding e = versioned(given, "embedding");
    const int64_t width = e.word.columns;
    const Norm norm(e.norm, width, "embedding norm");
    const Kernels& table = kernels();
    struct Source {
      const char* name;
      const fb_matrix& matrix;
      const int64_t* index;
    };
    const Source sources[] = {
        {"token id", e.word, ids}, {"position", e.position, positions}, {"token type", e.kind, kinds}};
    for (const auto& [name, matrix, index] : sources) {
      if (!matrix.data) continue;
      check_matrix(matrix, name);
      if (matrix.columns != width)
        throw Invalid("%s: the table is %lld wide, not %lld", name, static_cast<long long>(matrix.columns),
                      static_cast<long long>(width));
      for (int64_t r = 0; r < rows; ++r)
        if (index[r] < 0 || index[r] >= matrix.rows)
          throw Invalid("%s %lld is outside 0 to %lld", name, static_cast<long long>(index[r]),
                        static_cast<long long>(matrix.rows - 1));
    }
    constexpr int64_t kBlock = 64;
    Pool::Turn(pool).run((rows + kBlock - 1) / kBlock, [&](int64_t task, Arena& arena) {
      float* part = arena.take<float>(width);
      const int64_t first = task * kBlock, count = std::min(kBlock, rows - first);
      for (int64_t r = first; r < first + count; ++r) {
        float* to = output + r * width;
        read_row(e.word, ids[r], to);
        for (const auto& [name, matrix, index] : {sources[1], sources[2]}) {
          if (!matrix.data) continue;
          read_row(matrix, index[r], part);
          for (int64_t i = 0; i < width; ++i) to[i] += part[i];
        }
      }
      norm.apply(table, output + first * width, output + first * width, count, width);
    });
  });
}

fb_status fb_quantize(const fb_matrix* matrix, int8_t* values, float* scales, fb_pool* pool, fb_error* error) {
  return guard(error, [&] {
    check_matrix(*matrix, "matrix");
    const Kernels& table = kernels();
    Pool::Turn(pool).run(matrix->rows, [&](int64_t row, Arena& arena) {
      float* floats = arena.take<float>(matrix->columns);
      read_row(*matrix, row, floats);
      check_finite(floats, matrix->columns, "row " + std::to_string(row));
      scales[row] = table.quantize_weights(floats, matrix->columns, values + row * matrix->columns);
    });
  });
}
