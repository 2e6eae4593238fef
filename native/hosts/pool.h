// The threads of a framework's operators: nodes that want the same number share them, so that they take turns instead
// of crowding the cores.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "fusebert.h"

namespace fusebert {

class NodePool {
 public:
  // 1 to 1024 threads, or 0: as many as there are usable cores. Throws Invalid.
  explicit NodePool(int64_t threads);
  // The pool for a call. A forked process has none of its parent's threads and starts its own.
  fb_pool* get() const;

 private:
  int64_t threads_;
  pid_t process_;
  std::shared_ptr<fb_pool> pool_;
};

}  // namespace fusebert
