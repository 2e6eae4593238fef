#include "pool.h"

#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>

#include "status.h"

namespace fusebert {
namespace {

// What the nodes of one process share. A forked child begins anew, for a lock that it inherits may be held by a thread
// that it has not.
struct Shared {
  const pid_t process = getpid();
  std::mutex mutex{};
  std::map<int64_t, std::weak_ptr<fb_pool>> pools{};
  std::map<int64_t, std::shared_ptr<fb_pool>> kept{};  // of nodes that the parent made
};

Shared& shared() {
  static std::atomic<Shared*> known{nullptr};  // never deleted: nodes may outlive all statics
  Shared* now = known.load();
  if (now && now->process == getpid()) return *now;
  auto fresh = std::make_unique<Shared>();
  return *(known.compare_exchange_strong(now, fresh.get()) ? fresh.release() : now);
}

std::shared_ptr<fb_pool> find_or_start(Shared& own, int64_t threads) {
  auto& known = own.pools[threads];
  if (auto pool = known.lock()) return pool;
  fb_pool* made = nullptr;
  call_core([&](fb_error* error) { return fb_pool_create(static_cast<int32_t>(threads), &made, error); });
  std::shared_ptr<fb_pool> pool(made, fb_pool_destroy);
  known = pool;
  return pool;
}

}  // namespace

NodePool::NodePool(int64_t threads) : threads_(threads), process_(getpid()) {
  if (threads < 0 || threads > 1024) throw Invalid("threads: 1 to 1024, or 0 for all usable cores");
  Shared& own = shared();
  const std::lock_guard lock(own.mutex);
  pool_ = find_or_start(own, threads);
}

fb_pool* NodePool::get() const {
  if (process_ == getpid()) return pool_.get();
  Shared& own = shared();
  const std::lock_guard lock(own.mutex);
  auto& kept = own.kept[threads_];
  if (!kept) kept = find_or_start(own, threads_);
  return kept.get();
}

}  // namespace fusebert
