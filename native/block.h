// One residual step, packed: x = after(x + branch(body(before(x)))), where the body is attention or a feed-forward
// network and each norm may be absent.
#pragma once
#include <optional>

#include "attention.h"
#include "gemm.h"
#include "norm.h"

namespace fusebert {

// A body is two products with something between them: attention between query, key, value and out; an activation
// between up and down.
struct Body {
  Product in, out;
  std::optional<AttentionShape> attention;
  int32_t activation = FB_IDENTITY;  // of in
};

struct Block {
  std::optional<Norm> before;
  Body body;
  std::optional<Norm> branch, after;

  int64_t bytes() const;
};

// Checks every part and packs the weights into `store`, which must live as long. Throws Invalid, naming block and part.
Block pack_block(const fb_block* block, int64_t hidden, const Kernels& kernels, const std::string& name, Arena& store,
                 const Pool::Turn& turn);

}  // namespace fusebert
