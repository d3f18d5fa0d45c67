#include "api/workspace_pool.h"

#include <cstring>

#include "core/pages.h"

namespace tilewise {
namespace {

// An eighth of slack, so that a length growing by one does not allocate at each call.
int64_t rounded(int64_t bytes) {
  if (bytes < TILEWISE_CONTROL_BYTES) bytes = TILEWISE_CONTROL_BYTES;
  int64_t step = 4096;
  while (step < bytes / 8) step *= 2;
  return bytes > INT64_MAX - step ? bytes : (bytes + step - 1) / step * step;
}

}  // namespace

WorkspacePool::~WorkspacePool() {
  for (const tilewise_workspace& block : free_) release(block);
}

void* WorkspacePool::allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* data =
      allocate_ ? allocate_(user_, size, TILEWISE_WORKSPACE_ALIGNMENT) : allocate_pages(size).release();
  if (data) std::memset(data, 0, TILEWISE_CONTROL_BYTES);
  return data;
}

void WorkspacePool::release(tilewise_workspace block) {
  if (allocate_) {
    release_(user_, block.data, static_cast<size_t>(block.bytes));
  } else {
    FreePages()(static_cast<std::byte*>(block.data));
  }
}

tilewise_workspace WorkspacePool::take(int64_t bytes) {
  tilewise_workspace outgrown{nullptr, 0};
  {
    std::lock_guard lock(mutex_);
    size_t best = free_.size(), largest = free_.size();
    for (size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].bytes >= bytes && (best == free_.size() || free_[i].bytes < free_[best].bytes)) best = i;
      if (largest == free_.size() || free_[i].bytes > free_[largest].bytes) largest = i;
    }
    const size_t chosen = best < free_.size() ? best : largest;
    if (chosen < free_.size()) {
      outgrown = free_[chosen];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(chosen));
      if (best == chosen) return outgrown;
    }
  }
  if (outgrown.data) release(outgrown);
  tilewise_workspace block{nullptr, rounded(bytes)};
  block.data = allocate(block.bytes);
  if (!block.data && block.bytes > bytes) {
    block.bytes = bytes;
    block.data = allocate(bytes);
  }
  return block;
}

void WorkspacePool::give_back(tilewise_workspace block) {
  {
    std::lock_guard lock(mutex_);
    if (free_.size() < kKept) {
      try {
        free_.push_back(block);
        return;
      } catch (const std::bad_alloc&) {
        // Falls through: not kept.
      }
    }
  }
  release(block);
}

int64_t WorkspacePool::free_bytes() const {
  std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const tilewise_workspace& block : free_) sum += block.bytes;
  return sum;
}

}  // namespace tilewise
