// How products are shared out, for more threads than a machine that runs tests has: counted, not timed. Threads take
// the tasks of a cut in order and wait for those they need; time is numbers multiplied.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "check.h"
#include "cut.h"

namespace {

using fusebert::Cut;

struct Work {
  int64_t rows, outputs, inputs, tile_rows = 8, panel = 48;
};
constexpr double kPrepare = 6, kFinish = 6;  // what touching a number of a row takes, in multiplications

class Threads {
 public:
  explicit Threads(int64_t count) : free_(static_cast<size_t>(count)) {}
  // The next task of the order, which can begin at `ready`; when it ends.
  double take(double ready, double cost) {
    const auto thread = std::min_element(free_.begin(), free_.end());
    return *thread = std::max(*thread, ready) + cost;
  }
  double end() const { return *std::max_element(free_.begin(), free_.end()); }

 private:
  std::vector<double> free_;
};

// The share of all threads' time that is work, where the sharing alone decides.
double efficiency(const Work& work, int64_t threads) {
  const int64_t panels = (work.outputs + work.panel - 1) / work.panel;
  const int64_t tiles = (work.rows + work.tile_rows - 1) / work.tile_rows;
  const Cut cut = fusebert::cut(work.rows, work.tile_rows, panels, threads);
  const auto rows = [&](int64_t place, int64_t places) {
    const auto begin = [&](int64_t i) { return std::min(tiles * i / places * work.tile_rows, work.rows); };
    return static_cast<double>(begin(place + 1) - begin(place));
  };
  const double before = kPrepare * static_cast<double>(work.inputs),
               after = kFinish * static_cast<double>(work.outputs);
  const double product = static_cast<double>(work.outputs * work.inputs);
  Threads busy(threads);
  if (cut.own) {
    for (int64_t block = 0; block < cut.blocks; ++block)
      busy.take(0, rows(block, cut.blocks) * (before + product + after));
  } else {
    std::vector<double> prepared(static_cast<size_t>(cut.blocks)), multiplied = prepared;
    for (int64_t block = 0; block < cut.blocks + cut.later(); ++block) {
      const auto at = static_cast<size_t>(block);
      const int64_t done = block - cut.later();
      for (int64_t share = 0; share < cut.shares && block < cut.blocks; ++share) {
        const double ready = block < cut.places ? 0 : multiplied[static_cast<size_t>(block - cut.places)];
        const double cost = rows(block * cut.shares + share, cut.blocks * cut.shares) * before;
        prepared[at] = std::max(prepared[at], busy.take(ready, cost));
      }
      for (int64_t share = 0; share < cut.shares && done >= 0; ++share)
        busy.take(multiplied[static_cast<size_t>(done)],
                  rows(done * cut.shares + share, cut.blocks * cut.shares) * after);
      for (int64_t strip = 0; strip < cut.strips && block < cut.blocks; ++strip) {
        const double columns = static_cast<double>(panels * (strip + 1) / cut.strips - panels * strip / cut.strips) /
                               static_cast<double>(panels);
        multiplied[at] = std::max(multiplied[at], busy.take(prepared[at], rows(block, cut.blocks) * columns * product));
      }
    }
  }
  return static_cast<double>(work.rows) * (before + product + after) / (busy.end() * static_cast<double>(threads));
}

void test_threads_share_the_work() {
  std::printf("rows, outputs x inputs: share of the time that 2, 8, 32 and 64 threads work\n");
  for (const int64_t rows : {16, 128, 512, 1024, 8192})
    for (const auto& [outputs, inputs] : {std::pair{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}}) {
      std::printf("%5d %4d x %4d:", static_cast<int>(rows), outputs, inputs);
      for (const int64_t threads : {2, 8, 32, 64}) {
        const double share = efficiency({rows, outputs, inputs}, threads);
        std::printf(" %3.0f%%", 100 * share);
        where = std::to_string(rows) + " rows, " + std::to_string(outputs) + " outputs, " + std::to_string(threads) +
                " threads";
        CHECK(share > (rows < 128 ? 0.4 : 0.7));
      }
      std::printf("\n");
    }
}

// Two threads have one block of short rows in common, so that every weight is read by one of them alone.
void test_short_rows_are_not_cut() {
  for (const int64_t rows : {1, 16, 96}) {
    const Cut two = fusebert::cut(rows, 8, 16, 2);
    CHECK(!two.own && two.blocks == 1 && two.strips == 16);
  }
  CHECK(fusebert::cut(128, 8, 16, 2).own && fusebert::cut(1, 8, 16, 1).own);
}

// A wave has whole blocks for every thread and is bounded, whatever the batch; none that comes last is a small rest.
void test_waves_suit_the_threads() {
  for (const int64_t threads : {1, 2, 8, 64})
    for (const int64_t rows : {1, 100, 500, 1024, 5000, 100000}) {
      where = std::to_string(rows) + " rows, " + std::to_string(threads) + " threads";
      for (int64_t left = rows, wave = 0; left > 0; left -= wave) {
        wave = fusebert::wave_rows(left, threads);
        CHECK(wave > 0 && wave <= left && wave <= std::max<int64_t>(576, 288 * threads));
        CHECK(wave >= std::min(rows, threads * 96));
        CHECK(wave == left || wave % (threads * 96) == 0);
      }
    }
}

}  // namespace

int main() {
  test_waves_suit_the_threads();
  test_threads_share_the_work();
  test_short_rows_are_not_cut();
  return verdict();
}
