#include "attention.h"

#include <algorithm>

#include "memory.h"

namespace fusebert {
namespace {

constexpr int64_t kQueryRows = 48;  // scores of this many rows at a time

void attend_head(const Kernels& kernels, const AttentionShape& shape, const Sequence& sequence, int64_t head,
                 const float* qkv, float* context, Arena& arena) {
  const Gemm& gemm = shape.bf16 ? kernels.bf16 : kernels.f32;
  const int64_t query_width = shape.heads * shape.key_size, key_width = shape.key_heads * shape.key_size;
  const int64_t stride = query_width + key_width + shape.key_heads * shape.value_size;
  const int64_t context_width = shape.heads * shape.value_size, count = static_cast<int64_t>(sequence.keys.size());
  const int64_t key_head = head * shape.key_heads / shape.heads;
  const float* own = qkv + sequence.first * stride;
  const float* queries = own + head * shape.key_size;
  const float* keys = own + query_width + key_head * shape.key_size;
  const float* values = own + query_width + key_width + key_head * shape.value_size;

  auto* packed_keys = arena.take<uint8_t>(packed_elements(gemm, shape.key_size, count) * gemm.weight_bytes);
  auto* packed_values = arena.take<uint8_t>(packed_elements(gemm, count, shape.value_size) * gemm.weight_bytes);
  gemm.pack_keys(keys, stride, sequence.keys.data(), count, shape.key_size, packed_keys);
  gemm.pack_values(values, stride, sequence.keys.data(), count, shape.value_size, packed_values);
  const PackedWeights key_weights{packed_keys, shape.key_size, count, nullptr, nullptr};
  const PackedWeights value_weights{packed_values, count, shape.value_size, nullptr, nullptr};

  const int64_t block = std::min(kQueryRows, sequence.rows);
  const int64_t widest = std::max(round_up(shape.key_size, gemm.group), round_up(count, gemm.group));
  const int64_t padded = round_up(count, gemm.vector);
  auto* scores = arena.take<float>(block * padded);
  auto* share = arena.take<float>(block);
  auto* prepared = arena.take<uint8_t>(block * widest * gemm.input_bytes);
  if (sequence.uniform) std::fill_n(scores, block * padded, 0.0f);
  for (int64_t first = 0; first < sequence.rows; first += block) {
    const int64_t rows = std::min(block, sequence.rows - first);
    if (!sequence.uniform) {
      gemm.prepare(queries + first * stride, stride, rows, shape.key_size, nullptr, {0, 0}, prepared, nullptr, nullptr);
      gemm.multiply({prepared, nullptr, nullptr}, rows, key_weights, 0, panels(gemm, count), {scores, padded});
    }
    const float* bias = sequence.bias && !sequence.uniform
                            ? sequence.bias + head * shape.bias_stride[1] + first * shape.bias_stride[2]
                            : nullptr;
    gemm.soften(scores, padded, rows, count, shape.scale, bias, shape.bias_stride[2], shape.bias_stride[3], prepared,
                share);
    gemm.multiply({prepared, share, nullptr}, rows, value_weights, 0, panels(gemm, shape.value_size),
                  {context + (sequence.first + first) * context_width + head * shape.value_size, context_width});
  }
}

}  // namespace

void attend(const Kernels& kernels, const AttentionShape& shape, const std::vector<Sequence>& sequences,
            const float* qkv, float* context, const Pool::Turn& turn) {
  turn.run(static_cast<int64_t>(sequences.size()) * shape.heads, [&](int64_t task, Arena& arena) {
    attend_head(kernels, shape, sequences[static_cast<size_t>(task / shape.heads)], task % shape.heads, qkv, context,
                arena);
  });
}

}  // namespace fusebert
