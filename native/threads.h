// A pool of threads that share the tasks of one call at a time, and the number of cores a process may use.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fusebert.h"
#include "memory.h"

namespace fusebert {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Whether this is the process that made the pool. A forked child has none of its threads, and must not destroy it.
  bool at_home() const;

  // One call's hold on the pool. Calls on a pool of several threads take turns, each having all the threads; on a
  // single thread they do not wait for each other. Without a pool, and in a forked child, which has none of the pool's
  // threads, a call runs on its caller's thread.
  class Turn {
   public:
    explicit Turn(Pool* pool);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    int threads() const { return static_cast<int>(arenas_.size()); }
    // Scratch memory of the calling thread, and in run that of the thread that has the task.
    Arena& arena() const { return *arenas_[0]; }

    // Calls f(task, arena) for every task; what f takes from the arena lives until it returns.
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

 private:
  using Call = void (*)(const void* f, int64_t task, int worker);
  void stop_workers();
  void share(int64_t tasks, const void* f, Call call);
  void work(int worker);
  void take_tasks(int worker);
  bool wait_for_round(uint64_t seen);

  std::mutex turn_;  // held by the call that uses the pool
  std::mutex spare_mutex_;
  std::vector<std::unique_ptr<Arena>> spare_;
  // The round that is under way; written by the caller before round_ is raised.
  int64_t tasks_ = 0;
  const void* f_ = nullptr;
  Call call_ = nullptr;
  std::atomic<int64_t> next_{0};
  std::atomic<int> busy_{0};
  std::atomic<uint64_t> round_{0};
  std::atomic<bool> stop_{false};
  std::exception_ptr failure_;
  std::mutex failure_mutex_;
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  const int process_;
  std::vector<std::thread> workers_;
};

int usable_cores(const std::string& root);

}  // namespace fusebert

struct fb_pool : fusebert::Pool {  // the name it has in the C ABI
  using Pool::Pool;
};
