#include "threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <system_error>

#include "error.h"

namespace fusebert {
namespace {

// Steps follow each other within microseconds, so a worker spins that long before it sleeps.
constexpr int kSpins = 4000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Pool::Pool(int threads) : process_(getpid()) {
  try {
    for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
  } catch (const std::system_error& error) {
    stop_workers();
    throw Invalid("%d threads cannot be started (%s); use fewer", threads, error.what());
  }
}

bool Pool::at_home() const { return getpid() == process_; }

void Pool::stop_workers() {
  {
    std::lock_guard lock(sleep_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

Pool::~Pool() { stop_workers(); }

Pool::Turn::Turn(Pool* pool) : pool_(pool && pool->at_home() ? pool : nullptr), arenas_(1) {
  if (pool_) {
    if (pool_->threads() > 1) lock_ = std::unique_lock(pool_->turn_);
    arenas_.resize(static_cast<size_t>(pool_->threads()));
    std::lock_guard lock(pool_->spare_mutex_);
    // From the back, as they were put: a thread's arena keeps its duty and so its size.
    for (auto arena = arenas_.rbegin(); arena != arenas_.rend() && !pool_->spare_.empty(); ++arena) {
      *arena = std::move(pool_->spare_.back());
      pool_->spare_.pop_back();
    }
  }
  for (auto& arena : arenas_)
    if (!arena) arena = std::make_unique<Arena>();
}

Pool::Turn::~Turn() {
  if (!pool_) return;
  std::lock_guard lock(pool_->spare_mutex_);
  for (auto& arena : arenas_) pool_->spare_.push_back(std::move(arena));
}

void Pool::share(int64_t tasks, const void* f, Call call) {
  tasks_ = tasks;
  f_ = f;
  call_ = call;
  failure_ = nullptr;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(sleep_mutex_);
    round_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  take_tasks(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) > 0; ++spins)
    if (spins < kSpins)
      pause_briefly();
    else
      std::this_thread::yield();
  if (failure_) std::rethrow_exception(failure_);
}

void Pool::take_tasks(int worker) {
  try {
    for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) call_(f_, task, worker);
  } catch (...) {
    std::lock_guard lock(failure_mutex_);
    failure_ = std::current_exception();
  }
}

bool Pool::wait_for_round(uint64_t seen) {
  const auto ready = [&] { return stop_ || round_.load(std::memory_order_acquire) != seen; };
  for (int spins = 0; spins < kSpins && !ready(); ++spins) pause_briefly();
  if (!ready()) {
    std::unique_lock lock(sleep_mutex_);
    wake_.wait(lock, ready);
  }
  return !stop_;
}

void Pool::work(int worker) {
  for (uint64_t seen = 0; wait_for_round(seen); ++seen) {
    take_tasks(worker);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

namespace {

// The quota in cores that one cgroup folder sets, or 0 where it sets none.
double quota_in(const std::string& folder) {
  std::string quota;
  double period = 0;
  if (std::ifstream file(folder + "/cpu.max"); file >> quota >> period && period > 0 && quota != "max")
    return std::strtod(quota.c_str(), nullptr) / period;
  double v1 = 0;
  if (std::ifstream file(folder + "/cpu.cfs_quota_us"); !(file >> v1) || v1 <= 0) return 0;
  if (std::ifstream file(folder + "/cpu.cfs_period_us"); !(file >> period) || period <= 0) return 0;
  return v1 / period;
}

// The smallest quota of a cgroup and all it is inside of. A container often sees its own group at the mount's top.
double smallest_quota(const std::string& mount, std::string group) {
  double smallest = 0;
  for (;; group.erase(std::min(group.size(), group.rfind('/')))) {
    if (const double quota = quota_in(mount + group); quota > 0 && (smallest == 0 || quota < smallest))
      smallest = quota;
    if (group.empty() || group.rfind('/') == std::string::npos) return smallest;
  }
}

double cgroup_quota(const std::string& root) {
  double smallest = 0;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"})
      if (const double quota = smallest_quota(root + mount, group == "/" ? "" : group); quota > 0)
        smallest = smallest == 0 ? quota : std::min(smallest, quota);
  }
  return smallest;
}

}  // namespace

int usable_cores(const std::string& root) {
  cpu_set_t set;
  int cores =
      sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (const double quota = cgroup_quota(root); quota > 0) cores = std::min(cores, static_cast<int>(quota));
  return std::max(cores, 1);
}

}  // namespace fusebert
