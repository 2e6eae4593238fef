// The parts of a block by name: structs of the C ABI with all they point to, filled from whatever a host has. This is
// the one place that lists the fields, and so says in which order operators take their tensors.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "fusebert.h"
#include "sized.h"

namespace fusebert {

// A linear and its weight, to be filled together: `linear.weight` is set where they are kept.
struct LinearParts {
  fb_linear linear = unset<fb_linear>();
  fb_matrix weight = unset<fb_matrix>();
};

enum class BodyKind { attention, feed_forward };

class BlockParts {
 public:
  // source.linear(name) and source.norm(name) give std::optional<LinearParts> and std::optional<fb_norm>, and are asked
  // for the parts one after the other.
  template <class Source>
  BlockParts(BodyKind kind, Source& source) {
    const auto linear = [&](const char* name, const fb_linear*& to) {
      if (const std::optional<LinearParts> given = source.linear(name)) {
        LinearParts& own = linears_.emplace_back(*given);
        own.linear.weight = &own.weight;
        to = &own.linear;
      }
    };
    const auto norm = [&](const char* name, const fb_norm*& to) {
      if (const std::optional<fb_norm> given = source.norm(name)) to = &norms_.emplace_back(*given);
    };
    norm("before", block.before);
    if (kind == BodyKind::attention) {
      block.attention = &attention;
      linear("query", attention.query), linear("key", attention.key), linear("value", attention.value);
      linear("out", attention.out);
      norm("query_norm", attention.query_norm), norm("key_norm", attention.key_norm);
    } else {
      block.feed_forward = &feed_forward;
      linear("up", feed_forward.up), linear("gate", feed_forward.gate), linear("down", feed_forward.down);
    }
    norm("branch", block.branch), norm("after", block.after);
  }
  BlockParts(const BlockParts&) = delete;
  BlockParts& operator=(const BlockParts&) = delete;

  // The linears of the block's first product (0), which share an input, or the one of its second (1).
  std::vector<fb_linear*> product(int number);
  std::deque<fb_norm>& norms() { return norms_; }

  fb_block block = unset<fb_block>();
  fb_attention attention = unset<fb_attention>();
  fb_feed_forward feed_forward = unset<fb_feed_forward>();
  fb_position position = unset<fb_position>();  // the attention's, once that points to it

 private:
  std::deque<LinearParts> linears_;  // a deque: nothing moves that is pointed to
  std::deque<fb_norm> norms_;
};

using Blocks = std::deque<BlockParts>;

// What the operators of frameworks have: layers of an attention and a feed-forward block, with a norm after each.
inline constexpr size_t kLayerBlocks = 2, kLayerLinears = 6, kLayerTensors = 16;  // without scales
inline constexpr size_t kBlockRanges = 4;  // low and high of both products' inputs
inline constexpr size_t kLayerRanges = kLayerBlocks * kBlockRanges;

template <class Tensors>
void add_layer(Blocks& blocks, Tensors& tensors) {
  struct {
    Tensors& tensors;
    std::optional<LinearParts> linear(std::string_view name) {
      return name == "gate" ? std::nullopt : std::optional(tensors.linear(name));
    }
    std::optional<fb_norm> norm(std::string_view name) {
      return name == "after" ? std::optional(tensors.norm(name)) : std::nullopt;
    }
  } source{tensors};
  blocks.emplace_back(BodyKind::attention, source);
  blocks.emplace_back(BodyKind::feed_forward, source);
}

using EncoderHandle = std::shared_ptr<const fb_encoder>;
// The blocks, run in an order, or each once if that is empty; perhaps with a norm behind the last. Throws Invalid or
// bad_alloc.
EncoderHandle make_encoder(const Blocks& blocks, int64_t hidden, fb_pool* pool, const std::vector<int32_t>& order = {},
                           const fb_norm* final = nullptr);

}  // namespace fusebert
