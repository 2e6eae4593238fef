/* An encoder of one layer in C: blocks described from their matrices up, packed in int8, and run on two sequences of
 * different lengths. native/fusebert.h says what every field means. How it is compiled: docs/c.md. */
#include <fusebert.h>
#include <stdio.h>
#include <stdlib.h>

enum { HIDDEN = 64, INNER = 256, HEADS = 4, ROWS = 7 };

static fb_linear linear(fb_matrix* matrix, int64_t outputs, int64_t inputs) {
  float* numbers = malloc(sizeof(float) * (size_t)(outputs * inputs));
  for (int64_t i = 0; i < outputs * inputs; ++i) numbers[i] = (float)rand() / (float)RAND_MAX * 0.2f - 0.1f;
  *matrix = (fb_matrix){.size = sizeof *matrix, .data = numbers, .rows = outputs, .columns = inputs,
                        .row_stride = inputs, .column_stride = 1};
  return (fb_linear){.size = sizeof(fb_linear), .precision = FB_S8, .weight = matrix};
}

int main(void) {
  fb_matrix m[6];
  fb_linear query = linear(m, HIDDEN, HIDDEN), key = linear(m + 1, HIDDEN, HIDDEN), value = linear(m + 2, HIDDEN, HIDDEN),
            out = linear(m + 3, HIDDEN, HIDDEN), up = linear(m + 4, INNER, HIDDEN), down = linear(m + 5, HIDDEN, INNER);
  fb_norm norm = {.size = sizeof norm, .epsilon = 1e-12f};
  fb_attention attention = {.size = sizeof attention, .heads = HEADS, .query = &query, .key = &key, .value = &value, .out = &out};
  fb_feed_forward forward = {.size = sizeof forward, .activation = FB_GELU_ERF, .up = &up, .down = &down};
  fb_block blocks[] = {{.size = sizeof(fb_block), .attention = &attention, .after = &norm},
                       {.size = sizeof(fb_block), .feed_forward = &forward, .after = &norm}};
  const fb_block* list[] = {blocks, blocks + 1};
  fb_encoder_spec spec = {.size = sizeof spec, .hidden = HIDDEN, .block_count = 2, .blocks = list};

  fb_error error;
  fb_pool* pool;
  fb_encoder* encoder;
  if (fb_pool_create(0, &pool, &error) || fb_encoder_create(&spec, pool, &encoder, &error)) return puts(error.message), 1;
  for (int i = 0; i < 6; ++i) free((void*)m[i].data); /* packed: not needed any more */

  float rows[ROWS * HIDDEN];
  for (int i = 0; i < ROWS * HIDDEN; ++i) rows[i] = (float)(i % 13) - 6.0f;
  const int64_t offsets[] = {0, 3, ROWS}; /* three tokens, then four */
  fb_run run = {.size = sizeof run, .sequences = 2, .offsets = offsets, .input = rows, .output = rows, .pool = pool};
  if (fb_encoder_run(encoder, &run, &error)) return puts(error.message), 1;
  const char* isa;
  fb_isa(&isa, NULL);
  printf("%s, %d threads: first row begins with %.4f %.4f\n", isa, fb_pool_threads(pool), rows[0], rows[1]);
  fb_encoder_destroy(encoder);
  fb_pool_destroy(pool);
  return 0;
}
