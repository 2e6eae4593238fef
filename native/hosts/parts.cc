#include "parts.h"

#include "status.h"

namespace fusebert {

std::vector<fb_linear*> BlockParts::product(int number) {
  std::vector<fb_linear*> linears;
  for (LinearParts& part : linears_)
    if ((&part == &linears_.back()) == (number == 1)) linears.push_back(&part.linear);
  return linears;
}

EncoderHandle make_encoder(const Blocks& blocks, int64_t hidden, fb_pool* pool, const std::vector<int32_t>& order,
                           const fb_norm* final) {
  std::vector<const fb_block*> pointers;
  for (const BlockParts& parts : blocks) pointers.push_back(&parts.block);
  auto spec = unset<fb_encoder_spec>();
  spec.hidden = static_cast<int32_t>(hidden);
  spec.blocks = pointers.data(), spec.block_count = static_cast<int32_t>(pointers.size());
  if (!order.empty()) spec.order = order.data(), spec.order_count = static_cast<int32_t>(order.size());
  spec.final = final;
  fb_encoder* encoder = nullptr;
  call_core([&](fb_error* error) { return fb_encoder_create(&spec, pool, &encoder, error); });
  return {encoder, [](fb_encoder* made) { fb_encoder_destroy(made); }};
}

}  // namespace fusebert
