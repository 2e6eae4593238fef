// Embeddings: rows of tables, added up and normed.
#pragma once
#include <optional>

#include "norm.h"
#include "threads.h"

namespace fusebert {

class Embedding {
 public:
  explicit Embedding(const fb_embedding_spec& spec);
  void run(int64_t rows, const int64_t* ids, const int64_t* positions, const int64_t* token_types, float* output,
           const Pool::Turn& turn) const;

 private:
  fb_matrix word_;
  std::optional<fb_matrix> position_, token_type_;
  std::optional<Norm> norm_;
  float scale_;
};

}  // namespace fusebert
