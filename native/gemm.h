// The seam between the encoder's steps and the kernels: weights packed once, products with their epilogues behind them.
//
// A Product is y = finish(activation(x Wᵀ + b) + residual). Rows go through in blocks that stay in cache from the
// preparation of the inputs to the last epilogue; threads share the blocks or, where these are few, their columns.
#pragma once
#include <functional>
#include <span>
#include <string>

#include "cut.h"
#include "kernels.h"
#include "matrix.h"
#include "memory.h"
#include "threads.h"

namespace fusebert {

// Where a product's rows come from and go to.
struct Rows {
  const float* in;
  int64_t in_stride;
  int64_t count;
  Epilogue epilogue;  // bias is the product's own and set by it
};

class Product {
 public:
  // Packs the parts side by side as one product (query, key and value share their input) into `store`, which must live
  // as long. `name` is for error messages.
  Product(const Kernels& kernels, std::span<const Linear> parts, const std::string& name, Arena& store,
          const Pool::Turn& turn);

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }
  int64_t bytes() const;

  // Runs all rows, then finish(first_row, rows) on rows that are complete.
  using Finish = std::function<void(int64_t, int64_t)>;
  void run(const Rows& rows, const Pool::Turn& turn, const Finish& finish = {}) const;

 private:
  // Rows in the form that the kernels read.
  struct Inputs {
    uint8_t* data;
    float* scale;
    int32_t* zero;
  };
  int64_t row_bytes() const { return round_up(inputs_, gemm_->group) * gemm_->input_bytes; }
  Inputs take_inputs(int64_t rows, Arena& arena) const;
  void prepare(const Rows& rows, int64_t first, int64_t count, const Inputs& to, int64_t at) const;
  void multiply(const Rows& rows, int64_t first, int64_t count, const Inputs& inputs, int64_t strip,
                int64_t strips) const;
  void run_own_blocks(const Rows& rows, const Cut& cut, const Pool::Turn& turn, const Finish& finish) const;
  void run_shared_blocks(const Rows& rows, const Cut& cut, const Pool::Turn& turn, const Finish& finish) const;
  void check_agreement(std::span<const Linear> parts, const std::string& name) const;
  void take_range(const Linear& part, const std::string& name);
  void take_input_scales(const float* scales, const std::string& name, Arena& store);
  void pack(const Kernels& kernels, const Linear& part, int64_t first, const std::string& name, const Pool::Turn& turn);
  bool take_levels(const fb_matrix& weight, int64_t row, int8_t* levels) const;
  void place_levels(const int8_t* levels, int64_t column, float scale);

  const Gemm* gemm_;
  int64_t inputs_ = 0, outputs_ = 0;
  Range range_{0, 0};
  bool quantized_ = false;
  uint8_t* weights_;
  float *bias_, *scale_ = nullptr;
  float* factors_ = nullptr;  // of the inputs' columns, or null
  int32_t* origin_ = nullptr;
};

}  // namespace fusebert
