/* The C ABI of the fused encoder: everything a host (Python, TensorFlow, ONNX Runtime) may call.
 *
 * Sizes + weights + precision per product -> an immutable encoder; ragged rows in -> rows out.
 * Rules that hold everywhere:
 *  - Structs that may grow begin with `size` = sizeof the caller's struct. Fields a caller does not know are zero,
 *    and zero always means the default. Fields are only ever appended.
 *  - A call returns FB_OK or an error status with one sentence in `error` (may be NULL). No exception crosses.
 *  - Encoders and denses never change after creation, so any number of threads may run one at the same time.
 *  - There is no global state. The environment variable FUSEBERT_ISA, read at creation, forces an instruction set.
 *  - A row's result depends on the rows of its own sequence only: bit for bit, whatever the batch, the padding
 *    and the number of threads. */
#ifndef FUSEBERT_H
#define FUSEBERT_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FB_API __attribute__((visibility("default")))

typedef enum fb_status { FB_OK = 0, FB_INVALID = 1, FB_OUT_OF_MEMORY = 2, FB_INTERNAL = 3 } fb_status;
typedef struct fb_error {
  char message[512];
} fb_error;

/* Element types of weights; the first, second and last are also the precisions of a product. */
typedef enum fb_type { FB_F32 = 0, FB_BF16 = 1, FB_F16 = 2, FB_S8 = 3 } fb_type;
typedef enum fb_activation {
  FB_IDENTITY = 0,
  FB_GELU_ERF = 1,
  FB_GELU_TANH = 2,
  FB_GELU_QUICK = 3,
  FB_RELU = 4,
  FB_TANH = 5
} fb_activation;

/* A weight matrix read through strides (in elements), so that both [out, in] and [in, out] storage fit. */
typedef struct fb_matrix {
  const void* data;
  int64_t rows, columns;
  int64_t row_stride, column_stride;
  const float* scales; /* FB_S8 only: value = data * scales[row] */
  int32_t type;        /* fb_type */
} fb_matrix;

typedef struct fb_linear { /* y = x * weight^T + bias; weight is [outputs, inputs] */
  fb_matrix weight;
  const float* bias; /* or NULL */
  /* [inputs] or NULL. Where the product is FB_S8, inputs are divided by these before they are quantised, and weights
   * multiplied; an FB_S8 weight has been multiplied already. Query, key and value share theirs. */
  const float* input_scales;
} fb_linear;

typedef struct fb_norm { /* LayerNorm over a row; either pointer may be NULL (gain 1, bias 0) */
  const float *gain, *bias;
  float epsilon;
} fb_norm;

/* How one product is computed. FB_S8: signed weights per output channel, unsigned inputs with scale and zero point
 * per row, found on the fly; or, when input_min < input_max, from that fixed range. */
typedef struct fb_plan {
  int32_t precision; /* FB_F32, FB_BF16 or FB_S8 */
  float input_min, input_max;
} fb_plan;

enum { FB_QKV = 0, FB_ATTENTION_OUT = 1, FB_FFN_IN = 2, FB_FFN_OUT = 3, FB_PRODUCTS = 4 };

typedef struct fb_layer { /* post-LayerNorm; every layer has its own sizes, taken from its weights */
  fb_linear query, key, value, attention_out, ffn_in, ffn_out;
  fb_norm attention_norm, output_norm;
  fb_plan plan[FB_PRODUCTS];
  int32_t attention; /* precision of the score and context products: FB_F32 or FB_BF16 */
  int32_t heads;
  int32_t activation; /* fb_activation, of ffn_in */
  float scale;        /* scores are multiplied by it; 0: one over the square root of a key's size */
} fb_layer;

typedef struct fb_encoder_spec {
  uint32_t size;
  uint32_t layer_size; /* sizeof(fb_layer) of the caller */
  const fb_layer* layers;
  int32_t layer_count;
  int32_t hidden;
} fb_encoder_spec;

/* Threads are an object of their own, shared by whatever runs on them; calls on one pool queue up. NULL where a pool is
 * asked for means the calling thread alone. threads = 0: as many as fb_cores says. */
typedef struct fb_pool fb_pool;
FB_API fb_status fb_pool_create(int32_t threads, fb_pool** pool, fb_error* error);
/* A pool without threads of its own: inside a framework that has some, which may still spin from its last operator, a
 * second set would only be in their way. parallel calls task(data) up to `count` times, side by side where it can, and
 * returns when all have returned; host is what a call has in fb_run. Calls without a host run on their own thread. */
typedef void (*fb_parallel)(void* host, int32_t count, void (*task)(void* data), void* data);
FB_API fb_status fb_pool_borrow(int32_t threads, fb_parallel parallel, fb_pool** pool, fb_error* error);
FB_API int32_t fb_pool_threads(const fb_pool* pool);
FB_API void fb_pool_destroy(fb_pool* pool); /* does nothing in a forked child, where the threads are not */

/* Cores this process may really use: affinity mask and cgroup quotas (v1 and v2). root is NULL, or a folder that stands
 * in for the root of the file system. */
FB_API int32_t fb_cores(const char* root);

/* The instruction set in use (FUSEBERT_ISA or the best of this machine), and by index those this machine can run, best
 * first, NULL after the last. */
FB_API fb_status fb_isa(const char** name, fb_error* error);
FB_API const char* fb_isa_supported(int32_t index);

typedef struct fb_encoder fb_encoder;
FB_API fb_status fb_encoder_create(const fb_encoder_spec* spec, fb_pool* pool, fb_encoder** encoder, fb_error* error);
FB_API int64_t fb_encoder_bytes(const fb_encoder* encoder); /* memory held by the packed weights */
FB_API void fb_encoder_destroy(fb_encoder* encoder);

/* Wall seconds per step of the calls that were given this profile, summed; names by fb_step_name. */
enum { FB_STEPS = 5 };
typedef struct fb_profile {
  uint32_t size;
  uint32_t calls;
  double seconds[FB_STEPS];
} fb_profile;
FB_API const char* fb_step_name(int32_t step); /* NULL past the last */

/* Called with the input rows of every product, in order, from the calling thread. */
typedef struct fb_observer {
  void* user;
  void (*rows)(void* user, int32_t layer, int32_t product, const float* data, int64_t rows, int64_t width);
} fb_observer;

typedef struct fb_run {
  uint32_t size;
  int32_t hidden_state_count; /* 0, or the encoder's layer count */
  int64_t sequences;
  const int64_t* offsets; /* [sequences + 1]; sequence i is rows offsets[i] .. offsets[i + 1] - 1; offsets[0] = 0 */
  const float* input;     /* [rows, hidden] */
  float* output;          /* [rows, hidden]; may be input */
  /* Row r of the batch is read from and written to storage row index[r]; NULL: r itself. */
  const int64_t* index;
  /* visible[r] = 0: no row attends to row r, which is still computed. A sequence with no visible row attends to all of
   * its rows equally, as frameworks do whose mask is the lowest float. NULL: every row is visible. */
  const uint8_t* visible;
  /* Added to the scaled scores: bias + sequence * stride[0] + head * [1] + query * [2] + key * [3]; may be NULL. */
  const float* bias;
  int64_t bias_stride[4];
  /* [hidden_state_count] outputs of every layer, each laid out like output; a layer's may be NULL: not wanted. */
  float* const* hidden_states;
  fb_pool* pool;
  fb_profile* profile;
  const fb_observer* observer; /* runs on the calling thread alone */
  void* host;                  /* whose threads a borrowed pool uses */
} fb_run;
FB_API fb_status fb_encoder_run(const fb_encoder* encoder, const fb_run* run, fb_error* error);

/* One product by itself, for the parts around the encoder: y = norm(activation(x * W^T + b)); norm only if has_norm. */
typedef struct fb_dense fb_dense;
typedef struct fb_dense_spec {
  uint32_t size;
  int32_t activation;
  fb_linear linear;
  fb_plan plan;
  int32_t has_norm;
  fb_norm norm;
} fb_dense_spec;
FB_API fb_status fb_dense_create(const fb_dense_spec* spec, fb_pool* pool, fb_dense** dense, fb_error* error);
FB_API fb_status fb_dense_run(const fb_dense* dense, const float* input, int64_t rows, float* output, fb_pool* pool,
                              fb_error* error);
FB_API int64_t fb_dense_bytes(const fb_dense* dense);
FB_API void fb_dense_destroy(fb_dense* dense);

/* Embeddings: norm(word[ids] + position[positions] + kind[kinds]). The tables are not copied: they must outlive the
 * embedding. kind.data may be NULL, and kinds then is. Every index is checked. */
typedef struct fb_embedding fb_embedding;
typedef struct fb_embedding_spec {
  uint32_t size;
  fb_matrix word, position, kind; /* [entries, width]; FB_F32, FB_BF16 or FB_F16 */
  fb_norm norm;
} fb_embedding_spec;
FB_API fb_status fb_embedding_create(const fb_embedding_spec* spec, fb_embedding** embedding, fb_error* error);
FB_API fb_status fb_embedding_run(const fb_embedding* embedding, int64_t rows, const int64_t* ids,
                                  const int64_t* positions, const int64_t* kinds, float* output, fb_pool* pool,
                                  fb_error* error);
FB_API void fb_embedding_destroy(fb_embedding* embedding);

/* Quantises a float matrix as FB_S8 products do: per row, the scale with the least squared error among those whose
 * neighbouring values (0 and 1, 2 and 3, ...) add up to at most 128 and at least -128. FB_S8 rows that exceed this are
 * quantised again where they are used. values is [rows, columns] without gaps, scales [rows]. */
FB_API fb_status fb_quantize(const fb_matrix* matrix, int8_t* values, float* scales, fb_pool* pool, fb_error* error);

#ifdef __cplusplus
}
#endif
#endif
