// One residual step, packed: x = after(x + branch(body(before(x)))), where the body is attention or a feed-forward
// network and each norm may be absent.
#pragma once
#include <optional>

#include "attention.h"
#include "gemm.h"
#include "norm.h"

namespace fusebert {

// A body is two products with something between them: attention between query, key, value and out; an activation
// between up and down, or between up with its gate and down.
struct Body {
  Product in, out;
  std::optional<AttentionShape> attention;
  std::optional<Norm> query_norm, key_norm;  // as wide as one head or as all
  int32_t activation = FB_IDENTITY;          // of in, or of the gate
  bool gated = false;

  // Whether complete rows of `in` need anything done before they are read.
  bool has_readying() const;
  // That: heads are normed, and turned by `angles[row]` if these are given; up is gated.
  void ready(const Kernels& kernels, float* rows, int64_t count, const float* const* angles) const;
};

struct Block {
  std::optional<Norm> before;
  Body body;
  std::optional<Norm> branch, after;
  bool adds_twice = false;  // x = after(x + branch(x + body(before(x))))

  int64_t bytes() const;
};

// Checks every part and packs the weights into `store`, which must live as long, as `positions` must. Throws Invalid,
// naming block and part.
Block pack_block(const fb_block* block, int64_t hidden, const Kernels& kernels, const std::string& name, Arena& store,
                 Positions& positions, const Pool::Turn& turn);

}  // namespace fusebert
