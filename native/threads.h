// A pool of threads that share the tasks of one call at a time.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fusebert.h"
#include "memory.h"

namespace fusebert {

class Pool {
 public:
  // Threads of its own, or with `parallel` those of a host, which lends them for one call at a time.
  explicit Pool(int threads, fb_parallel parallel = nullptr);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  // Whether this is the process that made the pool. A forked child has none of its threads, and must not destroy it.
  bool at_home() const;

  // One call's hold on the pool. Calls on a pool of several threads take turns, each having all the threads; on a
  // single thread they do not wait for each other. Without a pool, while the host of a pool has lent it no threads, and
  // in a forked child, which has none of the pool's threads, a call runs on its caller's thread.
  class Turn {
   public:
    explicit Turn(Pool* pool, bool lent = false);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    int threads() const { return static_cast<int>(arenas_.size()); }
    // Scratch memory of the calling thread, and in run that of the thread that has the task.
    Arena& arena() const { return *arenas_[0]; }

    // Calls f(task, arena) for every task; what f takes from the arena lives until it returns. Tasks are begun in
    // order, so one may wait for those before it.
    template <class F>
    void run(int64_t tasks, const F& f) const {
      const auto one = [&](int64_t task, int worker) {
        Arena::Scope scope(*arenas_[static_cast<size_t>(worker)]);
        f(task, *arenas_[static_cast<size_t>(worker)]);
      };
      if (threads() == 1 || tasks <= 1) {
        for (int64_t task = 0; task < tasks; ++task) one(task, 0);
      } else {
        pool_->share(tasks, &one, [](const void* call, int64_t task, int worker) {
          (*static_cast<decltype(&one)>(call))(task, worker);
        });
      }
    }

   private:
    Pool* pool_;
    std::unique_lock<std::mutex> lock_;
    std::vector<std::unique_ptr<Arena>> arenas_;
  };

  // Calls f(turn) with the threads of the pool, or those that the host of this call lends it.
  template <class F>
  static void call(Pool* pool, void* host, const F& f) {
    if (pool && host && pool->parallel_ && pool->threads_ > 1 && pool->at_home())
      pool->borrow(host, &f, [](const void* body, const Turn& turn) { (*static_cast<const F*>(body))(turn); });
    else
      f(Turn(pool));
  }

 private:
  using Task = void (*)(const void* f, int64_t task, int worker);
  void stop_workers();
  void borrow(void* host, const void* f, void (*body)(const void* f, const Turn& turn));
  void share(int64_t tasks, const void* f, Task call);
  void work(int worker);
  void help(int worker);
  bool take_tasks(int worker);

  const int threads_, process_;
  const fb_parallel parallel_;
  std::mutex turn_;  // held by the call that uses the pool
  std::mutex spare_mutex_;
  std::vector<std::unique_ptr<Arena>> spare_;
  // The round of tasks that is under way: its number, and behind it the next task to take. While the rest is written
  // the round is closed, that is, it has no next task; so a thread that comes late cannot mix up two rounds.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int64_t> tasks_{0}, left_{0};
  std::atomic<const void*> f_{nullptr};
  std::atomic<Task> call_{nullptr};
  std::exception_ptr failure_;
  std::mutex failure_mutex_;
  // Between calls, workers sleep; during one they spin, for steps follow each other within microseconds.
  std::atomic<bool> open_{false}, stop_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until ready(), which is only ever a moment away unless the machine is crowded.
template <class Ready>
void wait_until(const Ready& ready) {
  constexpr int kSpins = 4000;
  for (int spins = 0; !ready(); ++spins)
    if (spins < kSpins)
      pause_briefly();
    else
      std::this_thread::yield();
}

}  // namespace fusebert

struct fb_pool : fusebert::Pool {  // the name it has in the C ABI
  using Pool::Pool;
};
