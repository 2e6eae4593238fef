#include "embedding.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "matrix.h"

namespace fusebert {
namespace {

std::optional<fb_matrix> table(const fb_matrix* given, const fb_matrix& word, const char* name) {
  if (!given) return std::nullopt;
  const fb_matrix table = checked(given, name);
  if (table.columns != word.columns)
    throw Invalid("embedding tables are %lld and %lld wide", static_cast<long long>(word.columns),
                  static_cast<long long>(table.columns));
  return table;
}

void check_indices(const char* name, const std::optional<fb_matrix>& table, const int64_t* index, int64_t rows) {
  if (!table) return;
  if (!index) throw Invalid("%s is missing", name);
  for (int64_t r = 0; r < rows; ++r)
    if (index[r] < 0 || index[r] >= table->rows)
      throw Invalid("%s %lld is outside 0 to %lld", name, static_cast<long long>(index[r]),
                    static_cast<long long>(table->rows - 1));
}

}  // namespace

Embedding::Embedding(const fb_embedding_spec& spec)
    : word_(checked(spec.word, "word table")),
      position_(table(spec.position, word_, "position table")),
      token_type_(table(spec.token_type, word_, "token type table")),
      scale_(spec.scale != 0 ? spec.scale : 1) {
  if (!std::isfinite(scale_)) throw Invalid("the embeddings' scale is not finite");
  if (spec.norm) norm_.emplace(spec.norm, word_.columns, kernels(), "embedding norm");
}

void Embedding::run(int64_t rows, const int64_t* ids, const int64_t* positions, const int64_t* token_types,
                    float* output, const Pool::Turn& turn) const {
  check_indices("token id", word_, ids, rows);
  check_indices("position", position_, positions, rows);
  check_indices("token type", token_type_, token_types, rows);
  const int64_t width = word_.columns;
  constexpr int64_t kBlock = 64;
  turn.run((rows + kBlock - 1) / kBlock, [&](int64_t task, Arena& arena) {
    float* part = arena.take<float>(width);
    const auto add = [&](const fb_matrix& table, int64_t row, float* to) {
      read_rows(table, row, 1, part);
      for (int64_t i = 0; i < width; ++i) to[i] += part[i];
    };
    const int64_t first = task * kBlock, count = std::min(kBlock, rows - first);
    for (int64_t r = first; r < first + count; ++r) {
      float* to = output + r * width;
      read_rows(word_, ids[r], 1, to);
      if (token_type_) add(*token_type_, token_types[r], to);
      if (position_) add(*position_, positions[r], to);
      for (int64_t i = 0; scale_ != 1 && i < width; ++i) to[i] *= scale_;
    }
    if (norm_) norm_->apply(output + first * width, output + first * width, count);
  });
}

}  // namespace fusebert
