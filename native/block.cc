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
  const Pool::Turn& turn;

  Linear linear(const fb_linear* linear, const char* part) const { return Linear(linear, name + " " + part); }
  Product product(std::span<const Linear> parts, const char* part) const {
    return Product(kernels, parts, name + " " + part, store, turn);
  }
  std::optional<Norm> norm(const fb_norm* norm, const char* part) const {
    return norm ? std::optional<Norm>(std::in_place, norm, hidden, kernels, name + " " + part) : std::nullopt;
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
  void refuse(bool given, const char* part) const {
    if (given) throw Invalid("%s: %s is not supported yet; leave it out", name.c_str(), part);
  }
};

Body attention_of(const fb_attention& attention, const Making& make) {
  make.refuse(attention.window != 0, "window");
  make.refuse(attention.query_norm, "query_norm");
  make.refuse(attention.key_norm, "key_norm");
  make.refuse(attention.position, "position");
  const int32_t heads = attention.heads, key_heads = attention.key_heads ? attention.key_heads : heads;
  if (heads < 1) throw Invalid("%s: %d heads; at least one is needed", make.name.c_str(), heads);
  if (key_heads < 1 || heads % key_heads)
    throw Invalid("%s: %d heads cannot be grouped over %d key heads", make.name.c_str(), heads, key_heads);
  if (attention.precision != FB_F32 && attention.precision != FB_BF16)
    throw Invalid("%s: attention runs in FB_F32 or FB_BF16, not %d", make.name.c_str(), attention.precision);
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
  return {make.product(in, "query, key, value"), make.product({&out, 1}, "out"),
          AttentionShape{heads, key_heads, key_size, value_size, scale, attention.precision == FB_BF16, {}}};
}

Body feed_forward_of(const fb_feed_forward& feed_forward, const Making& make) {
  make.refuse(feed_forward.gate, "gate");
  if (!fb_activation_name(feed_forward.activation))
    throw Invalid("%s: unknown activation %d", make.name.c_str(), feed_forward.activation);
  const Linear up = make.linear(feed_forward.up, "up"), down = make.linear(feed_forward.down, "down");
  make.expect(up, "up", up.matrix.rows, make.hidden);
  make.expect(down, "down", make.hidden, up.matrix.rows);
  return {make.product({&up, 1}, "up"), make.product({&down, 1}, "down"), std::nullopt, feed_forward.activation};
}

Body body_of(const fb_block& block, const Making& make) {
  if (!block.attention == !block.feed_forward)
    throw Invalid("%s: a block has either attention or feed_forward", make.name.c_str());
  return block.attention ? attention_of(sized(block.attention, make.name + " attention"), make)
                         : feed_forward_of(sized(block.feed_forward, make.name + " feed_forward"), make);
}

Block block_of(const fb_block& block, const Making& make) {
  return {make.norm(block.before, "before"), body_of(block, make), make.norm(block.branch, "branch"),
          make.norm(block.after, "after")};
}

}  // namespace

Block pack_block(const fb_block* block, int64_t hidden, const Kernels& kernels, const std::string& name, Arena& store,
                 const Pool::Turn& turn) {
  return block_of(sized(block, name), {kernels, hidden, name, store, turn});
}

int64_t Block::bytes() const {
  int64_t total = body.in.bytes() + body.out.bytes();
  for (const auto* norm : {&before, &branch, &after})
    if (*norm) total += (*norm)->bytes();
  return total;
}

}  // namespace fusebert
