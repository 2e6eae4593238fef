#include "threads.h"

#include <system_error>

#include "error.h"
#include "platform.h"

namespace fusebert {
namespace {

constexpr int kPatience = 4000;  // looks at the pool before a worker sleeps
constexpr int kTaskBits = 40;    // of a ticket; the rest is the round
constexpr uint64_t kClosed = (uint64_t{1} << kTaskBits) - 1;

}  // namespace

Pool::Pool(int threads, fb_parallel parallel) : threads_(threads), process_(process_number()), parallel_(parallel) {
  try {
    for (int worker = 1; !parallel && worker < threads; ++worker)
      workers_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error& error) {
    stop_workers();
    throw Invalid("%d threads cannot be started (%s); use fewer", threads, error.what());
  }
}

bool Pool::at_home() const { return process_number() == process_; }

void Pool::stop_workers() {
  {
    std::lock_guard lock(sleep_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

Pool::~Pool() { stop_workers(); }

Pool::Turn::Turn(Pool* pool, bool lent) : pool_(pool && pool->at_home() ? pool : nullptr) {
  if (pool_ && pool_->parallel_ && pool_->threads_ > 1 && !lent) pool_ = nullptr;
  arenas_.resize(pool_ ? static_cast<size_t>(pool_->threads_) : 1);
  if (pool_) {
    if (pool_->threads_ > 1 && !lent) lock_ = std::unique_lock(pool_->turn_);
    std::lock_guard lock(pool_->spare_mutex_);
    // From the back, as they were put: a thread's arena keeps its duty and so its size.
    for (auto arena = arenas_.rbegin(); arena != arenas_.rend() && !pool_->spare_.empty(); ++arena) {
      *arena = std::move(pool_->spare_.back());
      pool_->spare_.pop_back();
    }
  }
  for (auto& arena : arenas_)
    if (!arena) arena = std::make_unique<Arena>();
  if (lock_) {
    {
      std::lock_guard lock(pool_->sleep_mutex_);
      pool_->open_ = true;
    }
    pool_->wake_.notify_all();
  }
}

Pool::Turn::~Turn() {
  if (!pool_) return;
  pool_->open_ = false;
  std::lock_guard lock(pool_->spare_mutex_);
  for (auto& arena : arenas_) pool_->spare_.push_back(std::move(arena));
}

void Pool::borrow(void* host, const void* f, void (*body)(const void* f, const Turn& turn)) {
  std::unique_lock lock(turn_);
  struct Loan {
    Pool& pool;
    const void* f;
    void (*body)(const void* f, const Turn& turn);
    std::atomic<int> arrived{0};
    std::exception_ptr failure{};
    // Who comes first leads and needs nobody; so it does not matter how many of its threads a host really lends.
    void join() {
      const int worker = arrived.fetch_add(1);
      if (worker > 0) return worker < pool.threads_ ? pool.help(worker) : void();
      try {
        body(f, Turn(&pool, true));
      } catch (...) {
        failure = std::current_exception();
        pool.open_ = false;
      }
    }
  } loan{*this, f, body};
  open_ = true;
  parallel_(host, threads_, [](void* given) { static_cast<Loan*>(given)->join(); }, &loan);
  if (loan.arrived == 0) loan.join();
  if (loan.failure) std::rethrow_exception(loan.failure);
}

void Pool::share(int64_t tasks, const void* f, Task call) {
  const uint64_t round = ((ticket_.load(std::memory_order_relaxed) >> kTaskBits) + 1) << kTaskBits;
  ticket_.store(round | kClosed, std::memory_order_relaxed);
  tasks_.store(tasks, std::memory_order_release);
  f_.store(f, std::memory_order_release);
  call_.store(call, std::memory_order_release);
  left_.store(tasks, std::memory_order_relaxed);
  failure_ = nullptr;
  ticket_.store(round, std::memory_order_release);
  take_tasks(0);
  wait_until([&] { return left_.load(std::memory_order_acquire) == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

// Takes tasks while there are any; whether it got one.
bool Pool::take_tasks(int worker) {
  bool any = false;
  for (uint64_t ticket = ticket_.load(std::memory_order_acquire);;) {
    const int64_t task = static_cast<int64_t>(ticket & kClosed);
    if (task >= tasks_.load(std::memory_order_acquire)) return any;
    const void* f = f_.load(std::memory_order_acquire);
    const Task call = call_.load(std::memory_order_acquire);
    // It is ours if the round is still the one that was read.
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    ++ticket;
    any = true;
    try {
      call(f, task, worker);
    } catch (...) {
      std::lock_guard lock(failure_mutex_);
      failure_ = std::current_exception();
    }
    left_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void Pool::help(int worker) {
  while (open_) wait_until([&] { return take_tasks(worker) || !open_; });
}

void Pool::work(int worker) {
  const auto called = [&] { return open_ || stop_; };
  while (!stop_) {
    help(worker);
    for (int looks = 0; looks < kPatience && !called(); ++looks) pause_briefly();
    std::unique_lock lock(sleep_mutex_);
    wake_.wait(lock, called);
  }
}

}  // namespace fusebert
