#include "attention.h"

#include <algorithm>
#include <optional>

#include "memory.h"

namespace fusebert {
namespace {

constexpr int64_t kQueryRows = 48;  // scores of this many rows at a time
constexpr int64_t kTasks = 2;       // for each thread

// Some rows of a sequence: from first to before last.
struct Part {
  int64_t first, last;
};

// The keys that rows see with a window, each and all together.
Keys see(const AttentionShape& shape, const Sequence& sequence, int64_t first, int64_t rows, int64_t* seen) {
  const auto& places = sequence.places;
  auto low = places.keys.begin(), high = low;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t place = places.rows[static_cast<size_t>(first + r)];
    low = std::lower_bound(low, places.keys.end(), place - shape.window);
    high = std::upper_bound(high, places.keys.end(), place + shape.window);
    seen[2 * r] = low - places.keys.begin(), seen[2 * r + 1] = high - places.keys.begin();
  }
  return {seen[0], seen[2 * rows - 1]};
}

// One head of one sequence: its keys and values packed, then its queries, a block of rows at a time.
class Head {
 public:
  Head(const Kernels& kernels, const AttentionShape& shape, const Sequence& sequence, int64_t head, const float* qkv,
       Arena& arena)
      : gemm_(shape.bf16 ? kernels.bf16 : kernels.f32),
        shape_(shape),
        sequence_(sequence),
        arena_(arena),
        head_(head),
        stride_(shape.row()),
        count_(static_cast<int64_t>(sequence.keys.size())),
        block_(std::min(kQueryRows, sequence.rows)),
        padded_(round_up(count_, gemm_.vector)) {
    const int64_t key_head = head * shape.key_heads / shape.heads;
    const float* own = qkv + sequence.first * stride_;
    const float* keys = own + (shape.heads + key_head) * shape.key_size;
    queries_ = own + head * shape.key_size;
    keys_ = arena.take<uint8_t>(packed_elements(gemm_, shape.key_size, count_) * gemm_.weight_bytes);
    values_ = arena.take<uint8_t>(packed_elements(gemm_, count_, shape.value_size) * gemm_.weight_bytes);
    gemm_.pack_keys(keys, stride_, sequence.keys.data(), count_, shape.key_size, keys_);
    gemm_.pack_values(own + shape.queries_and_keys() + key_head * shape.value_size, stride_, sequence.keys.data(),
                      count_, shape.value_size, values_);
    if (shape.position && shape.position->kind != FB_ROTARY && !sequence.uniform) take_terms(kernels, keys);

    const int64_t widest = std::max(round_up(shape.key_size, gemm_.group), round_up(count_, gemm_.group));
    scores_ = arena.take<float>(block_ * padded_);
    share_ = arena.take<float>(block_);
    seen_ = arena.take<int64_t>(2 * block_);
    prepared_ = arena.take<uint8_t>(block_ * widest * gemm_.input_bytes);
    if (sequence.uniform) std::fill_n(scores_, block_ * padded_, 0.0f);
  }

  void attend(Part part, float* context) const {
    for (int64_t first = part.first; first < part.last; first += block_) {
      const Arena::Scope scope(arena_);
      const int64_t rows = std::min(block_, part.last - first), width = shape_.heads * shape_.value_size;
      attend_rows(first, rows, {context + (sequence_.first + first) * width + head_ * shape_.value_size, width});
    }
  }

 private:
  bool windowed() const { return shape_.window && !sequence_.uniform; }

  void take_terms(const Kernels& kernels, const float* keys) {
    terms_.emplace(kernels, gemm_, *shape_.position, sequence_.places, head_, shape_.key_size, arena_);
    if (sequence_.places.contiguous) return terms_->take_keys(keys + sequence_.keys[0] * stride_, stride_);
    float* listed = arena_.take<float>(count_ * shape_.key_size);
    for (int64_t k = 0; k < count_; ++k)
      std::copy_n(keys + sequence_.keys[static_cast<size_t>(k)] * stride_, shape_.key_size,
                  listed + k * shape_.key_size);
    terms_->take_keys(listed, shape_.key_size);
  }

  // These begin at a whole vector, so that a sum over them is the same whatever rows are beside.
  Keys see(int64_t first, int64_t rows) const {
    if (!windowed()) return {0, count_};
    Keys keys = fusebert::see(shape_, sequence_, first, rows, seen_);
    keys.first = keys.first / gemm_.vector * gemm_.vector;
    for (int64_t i = 0; i < 2 * rows; ++i) seen_[i] -= keys.first;
    return keys;
  }

  void attend_rows(int64_t first, int64_t rows, const Epilogue& context) const {
    const Keys keys = see(first, rows);
    if (keys.first >= keys.last) {
      for (int64_t r = 0; r < rows; ++r) std::fill_n(context.out + r * context.out_stride, shape_.value_size, 0.0f);
      return;
    }
    Scores scores{scores_ + keys.first, padded_, rows, keys.count(), shape_.scale};
    if (windowed()) scores.seen = seen_;
    if (!sequence_.uniform) {
      gemm_.prepare(queries_ + first * stride_, stride_, rows, shape_.key_size, nullptr, {0, 0}, prepared_, nullptr,
                    nullptr);
      gemm_.multiply({prepared_, nullptr, nullptr}, rows, {keys_, shape_.key_size, count_, nullptr, nullptr},
                     keys.first / gemm_.panel, panels(gemm_, keys.last), {scores_, padded_});
      if (sequence_.bias) {
        const int64_t* stride = shape_.bias_stride;
        scores.bias = sequence_.bias + head_ * stride[1] + first * stride[2] + keys.first * stride[3];
        scores.bias_row_stride = stride[2], scores.bias_key_stride = stride[3];
      }
      if (terms_) {
        terms_->add(prepared_, first, rows, keys, scores.data, padded_);
        terms_->bias(first, keys, scores);
      }
    }
    gemm_.soften(scores, prepared_, share_);
    weigh(rows, keys, context);
  }

  // Softened scores * values. Of some keys alone, each panel of the values has its own beginning.
  void weigh(int64_t rows, Keys keys, const Epilogue& context) const {
    const InputRows weights{prepared_, share_, nullptr};
    if (keys.first == 0 && keys.last == count_) {
      gemm_.multiply(weights, rows, {values_, count_, shape_.value_size, nullptr, nullptr}, 0,
                     panels(gemm_, shape_.value_size), context);
      return;
    }
    for (int64_t column = 0; column < shape_.value_size; column += gemm_.panel) {
      const int64_t outputs = std::min<int64_t>(gemm_.panel, shape_.value_size - column);
      const int64_t before = column * round_up(count_, gemm_.group) + keys.first * round_up(outputs, gemm_.vector);
      gemm_.multiply(weights, rows, {values_ + before * gemm_.weight_bytes, keys.count(), outputs, nullptr, nullptr}, 0,
                     1, {context.out + column, context.out_stride});
    }
  }

  const Gemm& gemm_;
  const AttentionShape& shape_;
  const Sequence& sequence_;
  Arena& arena_;
  const int64_t head_, stride_, count_, block_, padded_;
  const float* queries_;
  uint8_t *keys_, *values_, *prepared_;
  float *scores_, *share_;
  int64_t* seen_;
  std::optional<Terms> terms_;
};

// The same in products of bytes; whether that was possible.
bool attend_in_bytes(const Kernels& kernels, const AttentionShape& shape, const Sequence& sequence, int64_t head,
                     Part part, const float* qkv, float* context, Arena& arena) {
  const int64_t key_head = head * shape.key_heads / shape.heads, stride = shape.row(), first = sequence.first;
  const float* own = qkv + first * stride;
  const ByteHead sizes{static_cast<int64_t>(sequence.keys.size()), shape.key_size, shape.value_size, shape.scale};
  auto* room = arena.take<uint8_t>(kernels.bytes.room(sizes));
  if (!kernels.bytes.pack(sizes, own + (shape.heads + key_head) * shape.key_size,
                          own + shape.queries_and_keys() + key_head * shape.value_size, stride, sequence.keys.data(),
                          room))
    return false;
  std::optional<Terms> terms;
  if (shape.position && shape.position->kind == FB_RELATIVE)
    terms.emplace(kernels, kernels.f32, *shape.position, sequence.places, head, shape.key_size, arena);
  const int64_t width = shape.heads * shape.value_size;
  for (int64_t row = part.first; row < part.last; row += kQueryRows) {
    const Arena::Scope scope(arena);
    ByteRows rows{own + row * stride + head * shape.key_size, stride, std::min(kQueryRows, part.last - row), 0,
                  sizes.keys};
    if (shape.window) {
      auto* seen = arena.take<int64_t>(2 * rows.count);
      const Keys keys = see(shape, sequence, row, rows.count, seen);
      rows.first = keys.first, rows.last = keys.last, rows.seen = seen;
    }
    if (terms) {
      Scores scores{nullptr, 0, rows.count, sizes.keys, 1};
      terms->bias(row, {0, sizes.keys}, scores);
      rows.bias = scores.bias, rows.bias_row_stride = scores.bias_row_stride;
    }
    rows.out = context + (first + row) * width + head * shape.value_size, rows.out_stride = width;
    kernels.bytes.attend(sizes, room, rows);
  }
  return true;
}

// A choice that depends on nothing but the sequence itself.
bool suits_bytes(const Kernels& kernels, const AttentionShape& shape, const Sequence& sequence) {
  const auto keys = static_cast<int64_t>(sequence.keys.size());
  return shape.bytes != FB_NEVER && (shape.bytes == FB_ALWAYS || keys >= kernels.bytes.fewest_keys[shape.bf16]) &&
         !sequence.uniform && !sequence.bias && !(shape.position && shape.position->kind == FB_DISENTANGLED) &&
         kernels.bytes.room({keys, shape.key_size, shape.value_size, shape.scale}) > 0;
}

}  // namespace

// A task is one head of one sequence. Where that would leave threads idle, its rows are shared out as well, though each
// part has to pack the keys again.
void attend(const Kernels& kernels, const AttentionShape& shape, const std::vector<Sequence>& sequences,
            const float* qkv, float* context, const Pool::Turn& turn) {
  const int64_t heads = static_cast<int64_t>(sequences.size()) * shape.heads;
  const int64_t parts = turn.threads() > 1 ? (kTasks * turn.threads() + heads - 1) / heads : 1;
  turn.run(heads * parts, [&](int64_t task, Arena& arena) {
    const Sequence& sequence = sequences[static_cast<size_t>(task / parts / shape.heads)];
    const int64_t head = task / parts % shape.heads, number = task % parts;
    const int64_t blocks = (sequence.rows + kQueryRows - 1) / kQueryRows, own = std::min(parts, (blocks + 1) / 2);
    const auto begin = [&](int64_t i) { return std::min(blocks * i / own * kQueryRows, sequence.rows); };
    if (number >= own) return;
    const Part part{begin(number), begin(number + 1)};
    if (suits_bytes(kernels, shape, sequence) &&
        attend_in_bytes(kernels, shape, sequence, head, part, qkv, context, arena))
      return;
    Head(kernels, shape, sequence, head, qkv, arena).attend(part, context);
  });
}

}  // namespace fusebert
