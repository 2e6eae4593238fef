// Cache-line aligned memory for numbers: arrays that stay, and arenas for what lives as long as one step of a call.
#pragma once
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "platform.h"

namespace fusebert {

struct Free {
  void operator()(void* p) const { give_memory_back(p); }
};

template <class T>
using Array = std::unique_ptr<T[], Free>;

template <class T>
int64_t bytes_of(int64_t count) {
  int64_t bytes;
  if (count < 0 || __builtin_mul_overflow(count, static_cast<int64_t>(sizeof(T)), &bytes) || bytes > INT64_MAX - 64)
    throw std::bad_alloc();
  return (bytes + 63) / 64 * 64;
}

template <class T>
Array<T> allocate(int64_t count) {
  void* p = take_memory(bytes_of<T>(count));
  if (!p) throw std::bad_alloc();
  return Array<T>(static_cast<T*>(p));
}

// Memory handed out in order and taken back all at once, kept for the next call: the system is asked only while it
// grows. Or a store of things that stay, side by side in large pages even if each is small.
class Arena {
 public:
  explicit Arena(int64_t chunk = int64_t{1} << 20) : least_(chunk) {}

  template <class T>
  T* take(int64_t count) {
    const int64_t bytes = bytes_of<T>(count);
    if (chunk_ == 0 && used_ == 0 && chunks_.size() > 1) join_chunks();
    while (chunk_ < chunks_.size() && chunks_[chunk_].second - used_ < bytes) ++chunk_, used_ = 0;
    if (chunk_ == chunks_.size()) {
      const int64_t size = bytes > least_ ? bytes : least_;
      chunks_.emplace_back(allocate<uint8_t>(size), size);
    }
    uint8_t* p = chunks_[chunk_].first.get() + used_;
    used_ += bytes;
    return reinterpret_cast<T*>(p);
  }

  // What is taken while a Scope lives is given back when it ends.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), chunk_(arena.chunk_), used_(arena.used_) {}
    ~Scope() { arena_.chunk_ = chunk_, arena_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t chunk_;
    int64_t used_;
  };

 private:
  // Growing inputs leave a trail of chunks, each too small for the next; one of their total size serves as well.
  void join_chunks() {
    int64_t total = 0;
    for (const auto& chunk : chunks_) total += chunk.second;
    chunks_.clear();
    chunks_.emplace_back(allocate<uint8_t>(total), total);
  }

  int64_t least_;  // bytes of a chunk
  std::vector<std::pair<Array<uint8_t>, int64_t>> chunks_;
  size_t chunk_ = 0;
  int64_t used_ = 0;
};

}  // namespace fusebert
