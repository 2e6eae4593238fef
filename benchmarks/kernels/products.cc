// Times the products of a layer alone, on one thread and on all, beside the ceiling. Prints lines of
//     product MODEL NAME ROWS OUTPUTS INPUTS PRECISION THREADS SECONDS
//     ceiling PRECISION THREADS OPERATIONS_PER_SECOND
// Usage: products ROUNDS THREADS ROWS[,ROWS...] MODEL:HIDDEN:INNER...
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "ceiling.h"
#include "gemm.h"

using namespace fusebert;

namespace {

constexpr double kTurn = 0.02;  // seconds

struct Precision {
  const char* name;
  int32_t type;
  ceiling::Kind kind;
};
constexpr Precision kPrecisions[] = {
    {"fp32", FB_F32, ceiling::kF32}, {"bf16", FB_BF16, ceiling::kBf16}, {"int8", FB_S8, ceiling::kS8}};

struct Shape {
  const char* name;
  int64_t outputs, inputs;
  int32_t activation;
  bool residual;
};

// The best of as many calls as fit into a turn.
template <class F>
double best(double so_far, const F& call) {
  using Clock = std::chrono::steady_clock;
  for (const auto begin = Clock::now(); Clock::now() - begin < std::chrono::duration<double>(kTurn);) {
    const auto start = Clock::now();
    call();
    so_far = std::min(so_far, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return so_far;
}

std::vector<float> random_floats(int64_t count) {
  static std::mt19937 source(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(source);
  return values;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

class Bench {
 public:
  Bench(int rounds, int threads) : rounds_(rounds) {
    pools_[1] = nullptr;  // the calling thread
    if (threads > 1) pools_[threads] = std::make_unique<Pool>(threads);
  }

  void measure(const std::string& model, const Shape& shape, int64_t rows) {
    const auto weight = random_floats(shape.outputs * shape.inputs), bias = random_floats(shape.outputs);
    const auto in = random_floats(rows * shape.inputs), residual = random_floats(rows * shape.outputs);
    std::vector<float> out(residual.size());
    const fb_matrix matrix{sizeof matrix, FB_F32, weight.data(), shape.outputs, shape.inputs, shape.inputs, 1, nullptr};
    const Rows work{in.data(),
                    shape.inputs,
                    rows,
                    {out.data(), shape.outputs, nullptr, shape.activation, shape.residual ? residual.data() : nullptr,
                     shape.outputs}};
    for (const Precision& precision : kPrecisions)
      for (const auto& [threads, pool] : pools_) {
        const Pool::Turn turn(pool.get());
        Arena store;
        const fb_linear given{sizeof given, precision.type, &matrix, bias.data(), nullptr, 0, 0};
        const Linear linear(&given, shape.name);
        const Product product(kernels(), {&linear, 1}, shape.name, store, turn);
        double& ceiling = ceilings_.try_emplace({precision.kind, threads}, 0).first->second;
        double seconds = 1e9;
        for (int round = 0; round < rounds_; ++round) {
          seconds = best(seconds, [&] { product.run(work, turn); });
          ceiling = std::max(ceiling, ceiling::measure(precision.kind, threads));
        }
        std::printf("product %s %s %lld %lld %lld %s %d %.9f\n", model.c_str(), shape.name,
                    static_cast<long long>(rows), static_cast<long long>(shape.outputs),
                    static_cast<long long>(shape.inputs), precision.name, threads, seconds);
        std::fflush(stdout);
      }
  }

  void print_ceilings() const {
    for (const Precision& precision : kPrecisions)
      for (const auto& [threads, pool] : pools_)
        std::printf("ceiling %s %d %.0f\n", precision.name, threads, ceilings_.at({precision.kind, threads}));
  }

 private:
  int rounds_;
  std::map<int, std::unique_ptr<Pool>> pools_;
  std::map<std::pair<ceiling::Kind, int>, double> ceilings_;
};

}  // namespace

int main(int count, char** arguments) {
  Bench bench(std::atoi(arguments[1]), std::atoi(arguments[2]));
  for (int i = 4; i < count; ++i) {
    const auto model = split(arguments[i], ':');
    const int64_t hidden = std::stoll(model[1]), inner = std::stoll(model[2]);
    for (const Shape& shape :
         {Shape{"qkv", 3 * hidden, hidden, FB_IDENTITY, false},
          Shape{"attention_out", hidden, hidden, FB_IDENTITY, true}, Shape{"ffn_in", inner, hidden, FB_GELU_ERF, false},
          Shape{"ffn_out", hidden, inner, FB_IDENTITY, true}})
      for (const auto& rows : split(arguments[3], ',')) bench.measure(model[0], shape, std::stoll(rows));
  }
  bench.print_ceilings();
}
