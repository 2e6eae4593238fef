#include "block.h"

#include <cmath>

#include "error.h"
#include "sized.h"

namespace fusebert {
namespace {

// What a block's parts are made with.
struct Making {
  const Kernels& kernels;
  int64_t hidden;
  const std::string& name;  // of the block
  Arena& store;
  Positions& positions;
  const Pool::Turn& turn;

  Linear linear(const fb_linear* linear, const char* part) const { return Linear(linear, name + " " + part); }
  Product product(std::span<const Linear> parts, const char* part) const {
    return Product(kernels, parts, name + " " + part, store, turn);
  }
  std::optional<Norm> norm(const fb_norm* norm, const char* part, int64_t width) const {
    return norm ? std::optional<Norm>(std::in_place, norm, width, kernels, name + " " + part) : std::nullopt;
  }
  std::optional<Norm> norm(const fb_norm* norm, const char* part) const { return this->norm(norm, part, hidden); }
  // The norm of heads, one at a time or all together.
  std::optional<Norm> head_norm(const fb_norm* norm, const char* part, int64_t heads, int64_t size) const {
    if (!norm) return std::nullopt;
    const int32_t width = sized(norm, name + " " + part).width;
    if (width && width != size && width != heads * size)
      throw Invalid("%s %s: a width of %d is neither that of a head, %lld, nor that of all, %lld", name.c_str(), part,
                    width, static_cast<long long>(size), static_cast<long long>(heads * size));
    return this->norm(norm, part, width ? width : size);
  }
  void expect(const Linear& linear, const char* part, int64_t rows, int64_t columns) const {
    if (linear.matrix.rows != rows || linear.matrix.columns != columns)
      throw Invalid("%s %s: the weight is %lld x %lld, expected %lld x %lld", name.c_str(), part,
                    static_cast<long long>(linear.matrix.rows), static_cast<long long>(linear.matrix.columns),
                    static_cast<long long>(rows), static_cast<long long>(columns));
  }
  // A size that is shared out evenly.
  int64_t share(int64_t width, int32_t heads) const {
    if (width % heads)
      throw Invalid("%s: a width of %lld cannot be shared by %d heads", name.c_str(), static_cast<long long>(width),
                    heads);
    return width / heads;
  }
};

Body attention_of(const fb_attention& attention, const Making& make) {
  const int32_t heads = attention.heads, key_heads = attention.key_heads ? attention.key_heads : heads;
  if (heads < 1) throw Invalid("%s: %d heads; at least one is needed", make.name.c_str(), heads);
  if (key_heads < 1 || heads % key_heads)
    throw Invalid("%s: %d heads cannot be grouped over %d key heads", make.name.c_str(), heads, key_heads);
  if (attention.precision != FB_F32 && attention.precision != FB_BF16)
    throw Invalid("%s: attention runs in FB_F32 or FB_BF16, not %d", make.name.c_str(), attention.precision);
  if (attention.bytes < FB_NEVER || attention.bytes > FB_ALWAYS)
    throw Invalid("%s: bytes is %d; FB_NEVER, FB_WHERE_IT_PAYS or FB_ALWAYS is expected", make.name.c_str(),
                  attention.bytes);
  if (attention.window < 0)
    throw Invalid("%s: a window of %d; 0 or more is expected", make.name.c_str(), attention.window);
  if (!std::isfinite(attention.scale)) throw Invalid("%s: the score scale is not finite", make.name.c_str());

  const Linear in[] = {make.linear(attention.query, "query"), make.linear(attention.key, "key"),
                       make.linear(attention.value, "value")};
  const Linear out = make.linear(attention.out, "out");
  const int64_t key_size = make.share(in[0].matrix.rows, heads), value_size = make.share(in[2].matrix.rows, key_heads);
  make.expect(in[0], "query", heads * key_size, make.hidden);
  make.expect(in[1], "key", key_heads * key_size, make.hidden);
  make.expect(in[2], "value", key_heads * value_size, make.hidden);
  make.expect(out, "out", make.hidden, heads * value_size);
  const float scale = attention.scale != 0 ? attention.scale : 1 / std::sqrt(static_cast<float>(key_size));
  const bool bf16 = attention.precision == FB_BF16;
  const Position* position = nullptr;
  if (attention.position) {
    const std::string name = make.name + " position";
    position = make.positions.take(sized(attention.position, name), heads, key_size,
                                   bf16 ? make.kernels.bf16 : make.kernels.f32, name, make.store);
  }
  return {make.product(in, "query, key, value"), make.product({&out, 1}, "out"),
          AttentionShape{
              heads, key_heads, key_size, value_size, scale, bf16, attention.bytes, attention.window, position, {}},
          make.head_norm(attention.query_norm, "query_norm", heads, key_size),
          make.head_norm(attention.key_norm, "key_norm", key_heads, key_size)};
}

Body feed_forward_of(const fb_feed_forward& feed_forward, const Making& make) {
  if (!fb_activation_name(feed_forward.activation))
    throw Invalid("%s: unknown activation %d", make.name.c_str(), feed_forward.activation);
  std::vector<Linear> in{make.linear(feed_forward.up, "up")};
  const Linear down = make.linear(feed_forward.down, "down");
  const int64_t inner = in[0].matrix.rows;
  make.expect(in[0], "up", inner, make.hidden);
  make.expect(down, "down", make.hidden, inner);
  if (feed_forward.gate) {
    in.push_back(make.linear(feed_forward.gate, "gate"));
    make.expect(in[1], "gate", inner, make.hidden);
  }
  return {make.product(in, in.size() > 1 ? "up, gate" : "up"),
          make.product({&down, 1}, "down"),
          std::nullopt,
          std::nullopt,
          std::nullopt,
          feed_forward.activation,
          in.size() > 1};
}

Body body_of(const fb_block& block, const Making& make) {
  if (!block.attention == !block.feed_forward)
    throw Invalid("%s: a block has either attention or feed_forward", make.name.c_str());
  return block.attention ? attention_of(sized(block.attention, make.name + " attention"), make)
                         : feed_forward_of(sized(block.feed_forward, make.name + " feed_forward"), make);
}

Block block_of(const fb_block& block, const Making& make) {
  if (block.adds_twice && !block.branch)
    throw Invalid("%s: adds_twice needs a branch norm between the additions", make.name.c_str());
  return {make.norm(block.before, "before"), body_of(block, make), make.norm(block.branch, "branch"),
          make.norm(block.after, "after"), block.adds_twice != 0};
}

}  // namespace

Block pack_block(const fb_block* block, int64_t hidden, const Kernels& kernels, const std::string& name, Arena& store,
                 Positions& positions, const Pool::Turn& turn) {
  return block_of(sized(block, name), {kernels, hidden, name, store, positions, turn});
}

bool Body::has_readying() const {
  return gated || query_norm || key_norm ||
         (attention && attention->position && attention->position->kind == FB_ROTARY);
}

void Body::ready(const Kernels& kernels, float* rows, int64_t count, const float* const* angles) const {
  const int64_t stride = in.outputs();
  for (int64_t r = 0; gated && r < count; ++r)
    kernels.gate(activation, rows + r * stride + stride / 2, rows + r * stride, stride / 2);
  if (!attention) return;
  const auto norm = [&](const std::optional<Norm>& norm, int64_t first, int64_t width) {
    for (int64_t at = first; norm && at < first + width; at += norm->width()) norm->apply(rows + at, stride, count);
  };
  const int64_t queries = attention->heads * attention->key_size, both = attention->queries_and_keys();
  norm(query_norm, 0, queries);
  norm(key_norm, queries, both - queries);
  for (int64_t r = 0; angles && r < count; ++r)
    kernels.rotate(rows + r * stride, both / attention->key_size, attention->key_size, angles[r]);
}

int64_t Block::bytes() const {
  int64_t total = body.in.bytes() + body.out.bytes();
  for (const auto* norm : {&before, &branch, &after, &body.query_norm, &body.key_norm})
    if (*norm) total += (*norm)->bytes();
  return total;
}

}  // namespace fusebert
