/* The C ABI of the fused encoder: everything a host (Python, TensorFlow, ONNX Runtime) may call.
 *
 * Blocks of weights, with the precision of every product -> an immutable encoder; ragged rows in -> rows out.
 * Rules that hold everywhere:
 *  - Structs begin with `size` = sizeof the caller's struct. Fields a caller does not know are zero, and zero always
 *    means the default. Fields are only ever appended.
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

/* Lists of names with their numbers, which nothing else repeats: each(NAME, name, number) for every entry. */
#define FB_TYPE_LIST(each) each(F32, f32, 0) each(BF16, bf16, 1) each(F16, f16, 2) each(S8, s8, 3)
#define FB_ACTIVATION_LIST(each)                                                        \
  each(IDENTITY, identity, 0) each(GELU_ERF, gelu_erf, 1) each(GELU_TANH, gelu_tanh, 2) \
      each(GELU_QUICK, gelu_quick, 3) each(RELU, relu, 4) each(TANH, tanh, 5) each(SILU, silu, 6)
#define FB_NORM_LIST(each) each(LAYER_NORM, layer, 0) each(RMS_NORM, rms, 1)
#define FB_POSITION_LIST(each) \
  each(NO_POSITION, none, 0) each(ROTARY, rotary, 1) each(RELATIVE, relative, 2) each(DISENTANGLED, disentangled, 3)
#define FB_ENUMERATOR(NAME, name, number) FB_##NAME = number,
/* Element types of weights; f32, bf16 and s8 are also the precisions of a product. */
typedef enum fb_type { FB_TYPE_LIST(FB_ENUMERATOR) } fb_type;
typedef enum fb_activation { FB_ACTIVATION_LIST(FB_ENUMERATOR) } fb_activation;
typedef enum fb_norm_kind { FB_NORM_LIST(FB_ENUMERATOR) } fb_norm_kind;
typedef enum fb_position_kind { FB_POSITION_LIST(FB_ENUMERATOR) } fb_position_kind;
#undef FB_ENUMERATOR

/* What follows describes an encoder, from its matrices up. Structs hold each other by pointer; NULL: not there. They
 * are read while the encoder is made, and not needed afterwards. */

/* A matrix read through strides (in elements), so that both [out, in] and [in, out] storage fit. */
typedef struct fb_matrix {
  uint32_t size;
  int32_t type; /* fb_type */
  const void* data;
  int64_t rows, columns;
  int64_t row_stride, column_stride;
  const float* scales; /* FB_S8 only: value = data * scales[row] */
} fb_matrix;

/* A norm over a row. FB_LAYER_NORM: (x - mean) / sqrt(variance + epsilon) * gain + bias; FB_RMS_NORM: the same without
 * the mean, x / sqrt(mean square + epsilon) * gain + bias. */
typedef struct fb_norm {
  uint32_t size;
  int32_t kind;             /* fb_norm_kind */
  const float *gain, *bias; /* NULL: gain 1, bias 0 */
  float epsilon;
  int32_t width; /* of gain and bias, where a row could be normed in parts (query_norm, key_norm); 0: the default */
} fb_norm;

/* y = x * weight^T + bias, and how that product is computed. FB_S8: signed weights per output channel, unsigned inputs
 * with scale and zero point per row, found on the fly; or, where low < high, from that fixed range. Linears that share
 * an input (query, key and value) are one product: precision, range and input scales must be the same. */
typedef struct fb_linear {
  uint32_t size;
  int32_t precision;       /* FB_F32, FB_BF16 or FB_S8 */
  const fb_matrix* weight; /* [outputs, inputs] */
  const float* bias;       /* [outputs] or NULL */
  /* [inputs] or NULL. Where the product is FB_S8, inputs are divided by these before they are quantised, and weights
   * multiplied; an FB_S8 weight has been multiplied already. */
  const float* input_scales;
  float low, high;
} fb_linear;

/* What attention knows of the places of a query i and a key j in their sequence (see fb_run.positions).
 * - FB_ROTARY: table[0] is [count] frequencies, half as many as a key has numbers. Numbers k and k + count of a query
 * or key, as a pair, are turned by the angle position * frequency.
 * - FB_RELATIVE: table[0] is [heads, 2 * reach + 1]; the number at reach + j - i, no farther than reach from the
 * middle, is added to the scaled score.
 * - FB_DISENTANGLED: tables are [count, heads * key size], either may be NULL; query i * row of table[0] and key j *
 * row of table[1] are added to the score before it is scaled. The row is count / 2 + i - j, kept within the table; with
 *   buckets, distances beyond half of them share rows, the more the farther, and all beyond `reach` the last ones. */
typedef struct fb_position {
  uint32_t size;
  int32_t kind; /* fb_position_kind */
  const float* table[2];
  int64_t count, reach;
  int32_t buckets; /* 0: none */
} fb_position;

/* Products of 8-bit numbers, which FB_DISENTANGLED positions, biases and heads of more than 256 numbers never have. */
typedef enum fb_bytes { FB_NEVER, FB_WHERE_IT_PAYS, FB_ALWAYS } fb_bytes;

typedef struct fb_attention { /* sizes are those of the weights: a key has query->rows / heads numbers */
  uint32_t size;
  int32_t heads;
  int32_t key_heads; /* 0: as many; fewer: groups of heads share keys and values */
  int32_t precision; /* of the score and context products: FB_F32 or FB_BF16 */
  float scale;       /* scores are multiplied by it; 0: one over the square root of a key's size */
  int32_t window;    /* the farthest that a query sees, in positions; 0: everything */
  const fb_linear *query, *key, *value, *out;
  const fb_norm *query_norm, *key_norm; /* of one head (the default width) or of all heads together; before FB_ROTARY */
  const fb_position* position;
  int32_t bytes; /* fb_bytes: whether score and context products may be of 8-bit numbers instead */
} fb_attention;

typedef struct fb_feed_forward { /* down(activation(up(x))), or with a gate down(activation(gate(x)) * up(x)) */
  uint32_t size;
  int32_t activation; /* fb_activation */
  const fb_linear *up, *gate, *down;
} fb_feed_forward;

typedef struct fb_block { /* x = after(x + branch(body(before(x)))); one of the two bodies, and any of the norms */
  uint32_t size;
  const fb_norm* before;
  const fb_attention* attention;
  const fb_feed_forward* feed_forward;
  const fb_norm *branch, *after;
  int32_t adds_twice; /* other than 0: x = after(x + branch(x + body(before(x)))), and there is a branch */
} fb_block;

typedef struct fb_encoder_spec {
  uint32_t size;
  int32_t hidden;
  int32_t block_count, order_count;
  const fb_block* const* blocks;
  const int32_t*
      order; /* [order_count] numbers of blocks: one that is named again is packed once. NULL: each in turn */
  const fb_norm* final; /* of the last block's rows */
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

/* The name of a number of fb_activation, fb_type, fb_norm_kind or fb_position_kind; NULL past the last. */
FB_API const char* fb_activation_name(int32_t activation);
FB_API const char* fb_type_name(int32_t type);
FB_API const char* fb_norm_name(int32_t kind);
FB_API const char* fb_position_name(int32_t kind);

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

/* Called with the input rows of every product, in order, from the calling thread: the place in the encoder's order, and
 * 0 for the product that begins the block there (query, key and value, or up and gate), 1 for the one that ends it. */
typedef struct fb_observer {
  uint32_t size;
  void* user;
  void (*rows)(void* user, int32_t place, int32_t product, const float* data, int64_t rows, int64_t width);
} fb_observer;

typedef struct fb_run {
  uint32_t size;
  int32_t tap_count;
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
  /* [tap_count] different places in the encoder's order, and the rows after each, laid out like output. A state may be
   * NULL: not wanted. */
  const int32_t* taps;
  float* const* states;
  /* Where each row stands in its sequence, rising from row to row: of a padded batch the index in the padded row, so
   * that distances across hidden rows are kept. Counted from the sequence's first visible row, wherever that stands.
   * NULL: row after row. */
  const int32_t* positions;
  fb_pool* pool;
  fb_profile* profile;
  const fb_observer* observer; /* runs on the calling thread alone */
  void* host;                  /* whose threads a borrowed pool uses */
  /* Asked before every block, on the calling thread: other than 0 ends the call with FB_INVALID, its output unfinished.
   * NULL: never. */
  int32_t (*stop)(void* user);
  void* stop_user;
} fb_run;
FB_API fb_status fb_encoder_run(const fb_encoder* encoder, const fb_run* run, fb_error* error);

/* One product by itself, for the parts around the encoder: y = norm(activation(x * W^T + b)). */
typedef struct fb_dense fb_dense;
typedef struct fb_dense_spec {
  uint32_t size;
  int32_t activation;
  const fb_linear* linear;
  const fb_norm* norm; /* or NULL */
} fb_dense_spec;
FB_API fb_status fb_dense_create(const fb_dense_spec* spec, fb_pool* pool, fb_dense** dense, fb_error* error);
FB_API fb_status fb_dense_run(const fb_dense* dense, const float* input, int64_t rows, float* output, fb_pool* pool,
                              fb_error* error);
FB_API int64_t fb_dense_bytes(const fb_dense* dense);
FB_API void fb_dense_destroy(fb_dense* dense);

/* Embeddings: norm(scale * (word[ids] + position[positions] + token_type[token_types])). The tables' numbers are not
 * copied: they must outlive the embedding. All but word may be NULL, and so are the indices of a table that is. Every
 * index is checked. */
typedef struct fb_embedding fb_embedding;
typedef struct fb_embedding_spec {
  uint32_t size;
  const fb_matrix *word, *position, *token_type; /* [entries, width]; FB_F32, FB_BF16 or FB_F16 */
  const fb_norm* norm;
  float scale; /* 0: 1 */
} fb_embedding_spec;
FB_API fb_status fb_embedding_create(const fb_embedding_spec* spec, fb_embedding** embedding, fb_error* error);
FB_API fb_status fb_embedding_run(const fb_embedding* embedding, int64_t rows, const int64_t* ids,
                                  const int64_t* positions, const int64_t* token_types, float* output, fb_pool* pool,
                                  fb_error* error);
FB_API void fb_embedding_destroy(fb_embedding* embedding);

/* Quantises a float matrix as FB_S8 products do: per row, the scale with the least squared error. Of eight values in a
 * row the first, second, fifth and sixth add up to at most 128, the positive ones and the negative ones, and so do the
 * other four: on machines without VNNI four products of bytes are added in 16 bits. FB_S8 weights that exceed this are
 * quantised again where they are used. values is [rows, columns] without gaps, scales [rows]. */
FB_API fb_status fb_quantize(const fb_matrix* matrix, int8_t* values, float* scales, fb_pool* pool, fb_error* error);

#ifdef __cplusplus
}
#endif
#endif
