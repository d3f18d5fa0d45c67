// WorkspacePool: the one-call form's own workspaces, one for each call that is running. A call takes the
// smallest free block that is large enough; where there is none, the largest free one makes room for a larger
// one, so growing lengths do not leave a trail.
#ifndef TILEWISE_API_WORKSPACE_POOL_H_
#define TILEWISE_API_WORKSPACE_POOL_H_

#include <mutex>
#include <vector>

#include "tilewise/status.h"

namespace tilewise {

class WorkspacePool {
 public:
  // From the caller's allocator, or the C++ heap where `allocate` is null.
  WorkspacePool(tilewise_allocate allocate, tilewise_release release, void* user)
      : allocate_(allocate), release_(release), user_(user) {}
  ~WorkspacePool();
  WorkspacePool(const WorkspacePool&) = delete;
  WorkspacePool& operator=(const WorkspacePool&) = delete;

  // data null = out of memory.
  tilewise_workspace take(int64_t bytes);
  void give_back(tilewise_workspace workspace);
  int64_t free_bytes() const;

 private:
  void* allocate(int64_t bytes);
  void release(tilewise_workspace workspace);

  static constexpr size_t kKept = 16;  // free blocks
  tilewise_allocate allocate_;
  tilewise_release release_;
  void* user_;
  mutable std::mutex mutex_;
  std::vector<tilewise_workspace> free_;
};

}  // namespace tilewise
#endif  // TILEWISE_API_WORKSPACE_POOL_H_
