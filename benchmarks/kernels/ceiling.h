// What this machine's arithmetic and memory can do at best: multiply-adds that wait for nothing, in each precision by
// the best instruction the compiler may use (-march=native), and reading a buffer that no cache holds.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ceiling {

enum Kind { kF32, kBf16, kS8, kMemory };

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Floats __attribute__((vector_size(kBytes)));
typedef int32_t Ints __attribute__((vector_size(kBytes)));

struct F32 {
  static constexpr const char* kHow = "float multiply-add";
  static constexpr int kWork = 2 * kBytes / 4;
  using Sum = Floats;
  static Floats add(Floats sum, Ints x) {
    const Floats a = (Floats)x;
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)a, (__m512)sum);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)a, (__m256)sum);
#else
    return a * a + sum;
#endif
  }
};

#if defined(__AVX512BF16__)
struct Bf16 {
  static constexpr const char* kHow = "VDPBF16PS";
  static constexpr int kWork = 2 * kBytes / 2;
  using Sum = Floats;
  static Floats add(Floats sum, Ints x) { return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)x); }
};
#else
using Bf16 = F32;
#endif

#if defined(__AVX512VNNI__)
struct S8 {
  static constexpr const char* kHow = "VPDPBUSD";
  static constexpr int kWork = 2 * kBytes;
  using Sum = Ints;
  static Ints add(Ints sum, Ints x) { return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)x); }
};
#elif defined(__AVX2__)
struct S8 {
  static constexpr const char* kHow = "VPMADDUBSW, VPMADDWD and VPADDD";
  static constexpr int kWork = 2 * kBytes;
  using Sum = Ints;
#if defined(__AVX512BW__)
  static Ints add(Ints sum, Ints x) {
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)x, (__m512i)x);
    return sum + (Ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
  }
#else
  static Ints add(Ints sum, Ints x) {
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)x, (__m256i)x);
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
#endif
};
#else
using S8 = F32;
#endif

#if defined(__x86_64__)
#define CEILING_KEEP(value) __asm__ volatile("" : "+v"(value))
#else
#define CEILING_KEEP(value) __asm__ volatile("" : "+w"(value))
#endif

constexpr int kChains = 12;  // more than latency times instructions per cycle, and few enough for sixteen registers

constexpr int64_t kRounds = 8'000'000;  // of the chains: some 15 milliseconds
constexpr int64_t kPiece = 64 << 20;    // bytes read by a thread

template <class Way>
double multiply() {
  typename Way::Sum sum[kChains] = {};
  Ints x = Ints{} + 0x3f803f80;  // about one, as floats and as bf16
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      CEILING_KEEP(x);  // or the product would be taken out of the loop
      sum[i] = Way::add(sum[i], x);
      CEILING_KEEP(sum[i]);
    }
  }
  return static_cast<double>(kRounds) * kChains * Way::kWork;
}

// Each call reads the next piece of a buffer that is larger than caches are.
inline double read() {
  static const std::vector<int64_t> buffer((256 << 20) / 8, 1);
  static std::atomic<size_t> next{0};
  const size_t count = kPiece / 8, first = next++ % (buffer.size() / count) * count;
  int64_t sum = 0;
  for (size_t i = first; i < first + count; ++i) sum += buffer[i];
  __asm__ volatile("" : : "r"(sum));
  return static_cast<double>(kPiece);
}

// Operations (or bytes) a second on so many threads at once, from the first one's beginning to the last one's end.
inline double measure(Kind kind, int threads) {
  using Clock = std::chrono::steady_clock;
  double (*const piece)() = kind == kF32    ? multiply<F32>
                            : kind == kBf16 ? multiply<Bf16>
                            : kind == kS8   ? multiply<S8>
                                            : read;
  struct Turn {
    Clock::time_point begin, end;
    double done;
  };
  std::vector<Turn> turns(static_cast<size_t>(threads));
  std::atomic<int> waiting{threads};
  const auto work = [&](Turn& turn) {
    --waiting;
    while (waiting > 0) std::this_thread::yield();
    turn.begin = Clock::now();
    turn.done = piece();
    turn.end = Clock::now();
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < turns.size(); ++i) others.emplace_back(work, std::ref(turns[i]));
  work(turns[0]);
  for (std::thread& other : others) other.join();
  Turn all = turns[0];
  for (size_t i = 1; i < turns.size(); ++i) {
    all.begin = std::min(all.begin, turns[i].begin);
    all.end = std::max(all.end, turns[i].end);
    all.done += turns[i].done;
  }
  return all.done / std::chrono::duration<double>(all.end - all.begin).count();
}

}  // namespace ceiling
