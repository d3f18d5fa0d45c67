// Executor: how a CPU kernel spreads tasks. The pool that implements it is cpu/threads.h; a caller's
// parallel_for too.
#ifndef TILEWISE_CORE_EXECUTOR_H_
#define TILEWISE_CORE_EXECUTOR_H_

#include <cstdint>
#include <type_traits>

#include "tilewise/c.h"

namespace tilewise {

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int workers() const = 0;
  // task(data, i, w) for all i in [0, count), w < workers; returns when all are done. Tasks are started in
  // ascending order (put the longest first); which worker takes which is open, so results must not depend on
  // it.
  virtual void parallel_for(int64_t count, int workers, tilewise_task task, void* data) = 0;

  // The same for a callable (int64_t index, int worker).
  template <typename F>
  void run(int64_t count, int workers, F&& body) {
    using Body = std::remove_reference_t<F>;
    parallel_for(
        count, workers,
        [](void* data, int64_t index, int32_t worker) {
          (*static_cast<Body*>(data))(index, static_cast<int>(worker));
        },
        static_cast<void*>(&body));
  }
};

}  // namespace tilewise
#endif  // TILEWISE_CORE_EXECUTOR_H_
