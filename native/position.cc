#include "position.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "error.h"
#include "matrix.h"
#include "sized.h"

namespace fusebert {
namespace {

constexpr int64_t kLargestTable = int64_t{1} << 24;  // numbers by distance

void check_size(int64_t size, const char* what, const std::string& name) {
  if (size < 1 || size > kLargestTable)
    throw Invalid("%s: %s is %lld; at least 1 and at most %lld is expected", name.c_str(), what,
                  static_cast<long long>(size), static_cast<long long>(kLargestTable));
}

std::vector<float> copied(const float* from, int64_t count, const std::string& name) {
  if (!from) throw Invalid("%s: its table is missing", name.c_str());
  check_finite(from, count, name + " table");
  return {from, from + count};
}

// DeBERTa's row for query minus key: the distance itself as far as half the buckets, then one of the others, which get
// wider up to `reach`. In 32 bits, as the models were trained.
int64_t row_of(int64_t distance, int64_t buckets, int64_t reach, int64_t count) {
  const int64_t half = buckets / 2, far = std::abs(distance), middle = count / 2;
  int64_t row = distance;
  if (buckets > 0 && far > half) {
    const float steps = std::log(static_cast<float>(far) / static_cast<float>(half)) /
                        std::log(static_cast<float>(static_cast<double>(reach - 1) / static_cast<double>(half))) *
                        static_cast<float>(half - 1);
    const int64_t bucket = half + static_cast<int64_t>(std::ceil(std::min(steps, 1e9f)));
    row = distance < 0 ? -bucket : bucket;
  }
  return std::clamp<int64_t>(row + middle, 0, count - 1);
}

// Every head's rows of a table, packed as weights.
std::vector<uint8_t*> packed(const float* table, int64_t count, int64_t heads, int64_t size, const Gemm& gemm,
                             const std::string& name, Arena& store) {
  check_finite(table, count * heads * size, name + " table");
  std::vector<int64_t> index(static_cast<size_t>(count));
  std::iota(index.begin(), index.end(), 0);
  std::vector<uint8_t*> made;
  for (int64_t head = 0; head < heads; ++head) {
    made.push_back(store.take<uint8_t>(packed_elements(gemm, size, count) * gemm.weight_bytes));
    gemm.pack_keys(table + head * size, heads * size, index.data(), count, size, made.back());
  }
  return made;
}

Position made(const fb_position& given, int64_t heads, int64_t size, const Gemm& gemm, const std::string& name,
              Arena& store) {
  Position position;
  position.kind = given.kind;
  std::copy_n(given.table, 2, position.source);
  switch (given.kind) {
    case FB_ROTARY:
      if (size % 2 || given.count != size / 2)
        throw Invalid("%s: %lld frequencies cannot turn heads of %lld numbers; half as many are needed", name.c_str(),
                      static_cast<long long>(given.count), static_cast<long long>(size));
      position.numbers = copied(given.table[0], given.count, name);
      break;
    case FB_RELATIVE:
      position.reach = given.reach;
      if (given.reach) check_size(given.reach, "reach", name);
      position.numbers = copied(given.table[0], heads * (2 * given.reach + 1), name);
      break;
    case FB_DISENTANGLED: {
      check_size(given.reach, "reach", name), check_size(given.count, "count", name);
      if (given.count % 2) throw Invalid("%s: a table has an even number of rows", name.c_str());
      if (given.buckets < 0 || (given.buckets > 0 && (given.buckets < 4 || given.count != 2 * given.buckets ||
                                                      given.reach <= given.buckets / 2 + 1)))
        throw Invalid("%s: %d buckets do not fit a table of %lld rows and a reach of %lld", name.c_str(), given.buckets,
                      static_cast<long long>(given.count), static_cast<long long>(given.reach));
      const auto row = [&](int64_t distance) { return row_of(distance, given.buckets, given.reach, given.count); };
      position.count = given.count;
      position.reach = std::max(given.reach, given.count);
      while (row(-position.reach) > 0 || row(position.reach) < given.count - 1) ++position.reach;
      for (int64_t apart = -position.reach; apart <= position.reach; ++apart)  // key minus query
        position.rows.push_back(static_cast<int32_t>(row(-apart)));
      position.near = std::adjacent_find(position.rows.begin(), position.rows.end(), [](int32_t a, int32_t b) {
                        return b > a || b < a - 1;
                      }) == position.rows.end();
      for (int i = 0; i < 2; ++i)
        if (given.table[i]) position.tables[i] = packed(given.table[i], given.count, heads, size, gemm, name, store);
      break;
    }
    default: throw Invalid("%s: unknown kind %d of position", name.c_str(), given.kind);
  }
  return position;
}

}  // namespace

const Position* Positions::take(const fb_position& given, int64_t heads, int64_t size, const Gemm& gemm,
                                const std::string& name, Arena& store) {
  Position position;
  const auto same = [&](const Position& other) {
    if (given.kind == FB_ROTARY) return other.kind == FB_ROTARY && other.numbers == position.numbers;
    return other.kind == given.kind && given.kind == FB_RELATIVE && other.source[0] == given.table[0] &&
           other.reach == given.reach && static_cast<int64_t>(other.numbers.size()) == heads * (2 * given.reach + 1);
  };
  if (given.kind == FB_ROTARY) position = made(given, heads, size, gemm, name, store);
  if (const auto found = std::find_if(all_.begin(), all_.end(), same); found != all_.end()) return &*found;
  if (given.kind != FB_ROTARY) position = made(given, heads, size, gemm, name, store);
  bytes_ += static_cast<int64_t>((position.numbers.size() + position.rows.size()) * sizeof(float));
  for (const auto& table : position.tables)
    bytes_ += static_cast<int64_t>(table.size()) * packed_elements(gemm, size, position.count) * gemm.weight_bytes;
  return &all_.emplace_back(std::move(position));
}

template <class T>
ByDistance<T>::ByDistance(const T* table, int64_t reach, const Places& places, Arena& arena)
    : table_(table), reach_(reach), least_(int64_t{places.keys.front()} - places.rows.back()), places_(places) {
  const auto rows = static_cast<int64_t>(places.rows.size()), keys = static_cast<int64_t>(places.keys.size());
  spread_ = arena.take<T>(places.contiguous ? rows + keys - 1 + 2 * kMostLanes : keys);
  if (!places.contiguous) return;
  spread_ += kMostLanes;
  for (int64_t i = -kMostLanes; i < rows + keys - 1 + kMostLanes; ++i) spread_[i] = of(least_ + i);
}

template <class T>
T ByDistance<T>::of(int64_t distance) const {
  return table_[std::clamp(distance, -reach_, reach_) + reach_];
}

template <class T>
const T* ByDistance<T>::at(int64_t row, Keys keys) const {
  const int64_t place = places_.rows[static_cast<size_t>(row)];
  if (places_.contiguous) return spread_ + (places_.keys[static_cast<size_t>(keys.first)] - place - least_);
  for (int64_t k = keys.first; k < keys.last; ++k)
    spread_[k - keys.first] = of(places_.keys[static_cast<size_t>(k)] - place);
  return spread_;
}

Terms::Terms(const Kernels& kernels, const Gemm& gemm, const Position& position, const Places& places, int64_t head,
             int64_t size, Arena& arena)
    : kernels_(kernels),
      gemm_(gemm),
      position_(position),
      places_(places),
      head_(head),
      size_(size),
      width_(round_up(position.count, gemm.vector)),
      arena_(arena) {
  if (position.kind == FB_RELATIVE)
    numbers_.emplace(position.numbers.data() + head * (2 * position.reach + 1), position.reach, places, arena);
  if (position.kind == FB_DISENTANGLED) {
    rows_.emplace(position.rows.data(), position.reach, places, arena);
    if (!position.tables[0].empty()) of_queries_ = arena.take<float>(kBlockRows * width_ + kMostLanes);
  }
}

// The rows of a table that some rows and keys need: those of the distances in between.
Keys Terms::columns(int64_t first_row, int64_t last_row, Keys keys) const {
  const int32_t most = *rows_->at(last_row, {keys.first, keys.first + 1});
  return {*rows_->at(first_row, {keys.last - 1, keys.last}), most + 1};
}

void Terms::multiply(const void* inputs, int64_t count, int table, Keys columns, float* out) const {
  gemm_.multiply({inputs, nullptr, nullptr}, count,
                 {position_.tables[table][static_cast<size_t>(head_)], size_, position_.count, nullptr, nullptr},
                 columns.first / gemm_.panel, panels(gemm_, columns.last), {out, width_});
}

void Terms::take_keys(const float* keys, int64_t stride) {
  if (position_.tables[1].empty()) return;
  const auto count = static_cast<int64_t>(places_.keys.size());
  of_keys_ = arena_.take<float>(count * width_ + kMostLanes);
  const Arena::Scope scope(arena_);
  auto* inputs = arena_.take<uint8_t>(kBlockRows * round_up(size_, gemm_.group) * gemm_.input_bytes);
  for (int64_t first = 0; first < count; first += kBlockRows) {
    const Keys some{first, std::min(count, first + kBlockRows)};
    gemm_.prepare(keys + first * stride, stride, some.count(), size_, nullptr, {0, 0}, inputs, nullptr, nullptr);
    multiply(inputs, some.count(), 1, columns(0, static_cast<int64_t>(places_.rows.size()) - 1, some),
             of_keys_ + first * width_);
  }
}

void Terms::add(const void* queries, int64_t first, int64_t count, Keys keys, float* scores, int64_t stride) const {
  if (!rows_) return;
  if (of_queries_) multiply(queries, count, 0, columns(first, first + count - 1, keys), of_queries_);
  const float* const of_keys = of_keys_ ? of_keys_ + keys.first * width_ : nullptr;
  if (position_.near && places_.contiguous)
    return kernels_.add_near_terms(scores, stride, count, keys.count(),
                                   {of_queries_, of_keys, width_, rows_->at(first, keys)});
  for (int64_t r = 0; r < count; ++r) {
    const int32_t* index = rows_->at(first + r, keys);
    float* to = scores + r * stride;
    if (of_queries_) kernels_.add_terms(to, keys.count(), of_queries_ + r * width_, 0, index);
    if (of_keys) kernels_.add_terms(to, keys.count(), of_keys, width_, index);
  }
}

void Terms::bias(int64_t first, Keys keys, Scores& scores) const {
  if (!numbers_) return;
  if (places_.contiguous && !scores.bias) {  // the next row is one position farther on
    scores.bias = numbers_->at(first, keys);
    scores.bias_row_stride = -1, scores.bias_key_stride = 1;
    return;
  }
  float* sums = arena_.take<float>(scores.count * keys.count());
  for (int64_t r = 0; r < scores.count; ++r) {
    const float* numbers = numbers_->at(first + r, keys);
    const float* given = scores.bias ? scores.bias + r * scores.bias_row_stride : nullptr;
    for (int64_t k = 0; k < keys.count(); ++k)
      sums[r * keys.count() + k] = numbers[k] + (given ? given[k * scores.bias_key_stride] : 0.0f);
  }
  scores.bias = sums, scores.bias_row_stride = keys.count(), scores.bias_key_stride = 1;
}

}  // namespace fusebert
