// The border: C structs in, exceptions turned into status codes and sentences.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "dense.h"
#include "embedding.h"
#include "encoder.h"
#include "error.h"
#include "fusebert.h"
#include "platform.h"
#include "sized.h"

using namespace fusebert;

// The names they have in the C ABI.
struct fb_encoder : Encoder {
  using Encoder::Encoder;
};
struct fb_dense : Dense {
  using Dense::Dense;
};
struct fb_embedding : Embedding {
  using Embedding::Embedding;
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

void check_rows(int64_t rows, const void* output) {
  if (rows < 0) throw Invalid("%lld rows", static_cast<long long>(rows));
  if (rows > 0) need(output, "output");
}

// By number; null past the last.
template <size_t Count>
const char* name_in(const char* const (&names)[Count], int32_t number) {
  return number >= 0 && number < static_cast<int32_t>(Count) ? names[number] : nullptr;
}

}  // namespace

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
    *encoder = new fb_encoder(sized(spec, "spec"), Pool::Turn(pool));
  });
}
int64_t fb_encoder_bytes(const fb_encoder* encoder) { return encoder ? encoder->bytes() : 0; }
void fb_encoder_destroy(fb_encoder* encoder) { delete encoder; }
fb_status fb_encoder_run(const fb_encoder* encoder, const fb_run* given, fb_error* error) {
  return guard(error, [&] {
    need(encoder, "encoder");
    fb_run run = sized(given, "run");
    fb_observer observer{};
    if (run.observer) {
      observer = sized(run.observer, "observer"), run.observer = &observer;
      need(reinterpret_cast<const void*>(observer.rows), "observer");
    }
    fb_profile* const profile = run.profile;
    if (!profile) return encoder->run(run);
    fb_profile own = sized(profile, "profile");
    run.profile = &own;
    encoder->run(run);
    const uint32_t size = profile->size;
    own.size = size;
    std::memcpy(profile, &own, std::min<size_t>(size, sizeof own));
  });
}

const char* fb_step_name(int32_t step) {
  static constexpr const char* names[FB_STEPS] = {"qkv", "attention", "attention_out", "ffn_in", "ffn_out"};
  return name_in(names, step);
}

#define FB_NAME(NAME, name, number) #name,
const char* fb_activation_name(int32_t activation) {
  static constexpr const char* names[] = {FB_ACTIVATION_LIST(FB_NAME)};
  return name_in(names, activation);
}
const char* fb_type_name(int32_t type) {
  static constexpr const char* names[] = {FB_TYPE_LIST(FB_NAME)};
  return name_in(names, type);
}
const char* fb_norm_name(int32_t kind) {
  static constexpr const char* names[] = {FB_NORM_LIST(FB_NAME)};
  return name_in(names, kind);
}
const char* fb_position_name(int32_t kind) {
  static constexpr const char* names[] = {FB_POSITION_LIST(FB_NAME)};
  return name_in(names, kind);
}
#undef FB_NAME

fb_status fb_dense_create(const fb_dense_spec* spec, fb_pool* pool, fb_dense** dense, fb_error* error) {
  return guard(error, [&] {
    need(dense, "dense");
    *dense = new fb_dense(sized(spec, "spec"), Pool::Turn(pool));
  });
}
fb_status fb_dense_run(const fb_dense* dense, const float* input, int64_t rows, float* output, fb_pool* pool,
                       fb_error* error) {
  return guard(error, [&] {
    need(dense, "dense");
    check_rows(rows, output);
    if (rows > 0) need(input, "input"), dense->run(input, rows, output, Pool::Turn(pool));
  });
}
int64_t fb_dense_bytes(const fb_dense* dense) { return dense ? dense->bytes() : 0; }
void fb_dense_destroy(fb_dense* dense) { delete dense; }

fb_status fb_embedding_create(const fb_embedding_spec* spec, fb_embedding** embedding, fb_error* error) {
  return guard(error, [&] {
    need(embedding, "embedding");
    *embedding = new fb_embedding(sized(spec, "spec"));
  });
}
fb_status fb_embedding_run(const fb_embedding* embedding, int64_t rows, const int64_t* ids, const int64_t* positions,
                           const int64_t* token_types, float* output, fb_pool* pool, fb_error* error) {
  return guard(error, [&] {
    need(embedding, "embedding");
    check_rows(rows, output);
    if (rows > 0) embedding->run(rows, ids, positions, token_types, output, Pool::Turn(pool));
  });
}
void fb_embedding_destroy(fb_embedding* embedding) { delete embedding; }

fb_status fb_quantize(const fb_matrix* given, int8_t* values, float* scales, fb_pool* pool, fb_error* error) {
  return guard(error, [&] {
    const fb_matrix matrix = checked(given, "matrix");
    need(values, "values"), need(scales, "scales");
    const Kernels& table = kernels();
    Pool::Turn(pool).run((matrix.rows + kReadRows - 1) / kReadRows, [&](int64_t task, Arena& arena) {
      const int64_t begin = task * kReadRows, count = std::min(kReadRows, matrix.rows - begin), width = matrix.columns;
      float* floats = arena.take<float>(count * width);
      read_rows(matrix, begin, count, floats);
      for (int64_t row = begin; row < begin + count; ++row, floats += width) {
        check_finite(floats, width, "row " + std::to_string(row));
        scales[row] = table.quantize_weights(floats, width, values + row * width);
      }
    });
  });
}
