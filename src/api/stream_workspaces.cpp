#include "api/stream_workspaces.h"

#include <bit>

#include "cuda/runtime.h"

namespace tilewise {
namespace {

Status allocate(int device, void* stream, int64_t bytes, tilewise_workspace* block) {
  *block = {nullptr, 0};
  if (Status s = cuda::allocate_in(device, stream, bytes, &block->data); !s.ok()) return s;
  block->bytes = bytes;
  Status zeroed = cuda::zero_in(device, stream, block->data, TILEWISE_CONTROL_BYTES);
  if (!zeroed.ok()) {
    (void)cuda::release_in(device, stream, block->data);
    *block = {nullptr, 0};
  }
  return zeroed;
}

// Other streams may use the memory as soon as this call's work is done.
Status with_own(int device, void* stream, int64_t bytes, const StreamWorkspaces::Enqueue& enqueue) {
  tilewise_workspace block;
  if (Status s = allocate(device, stream, bytes, &block); !s.ok()) return s;
  Status done = enqueue(block);
  (void)cuda::release_in(device, stream, block.data);
  return done;
}

int64_t power_of_two(int64_t bytes) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

}  // namespace

StreamWorkspaces::~StreamWorkspaces() {
  for (const auto& kept : kept_) {
    if (!kept->block.data) continue;
    (void)cuda::synchronize(kept->device);
    cuda::release(kept->device, kept->block.data);
  }
}

StreamWorkspaces::Kept* StreamWorkspaces::kept_for(int device, uint64_t stream_id) {
  std::lock_guard lock(mutex_);
  for (const auto& kept : kept_)
    if (kept->stream_id == stream_id && kept->device == device) return kept.get();
  if (kept_.size() == kMostStreams) return nullptr;
  auto made = std::make_unique<Kept>();
  made->device = device;
  made->stream_id = stream_id;
  kept_.push_back(std::move(made));
  return kept_.back().get();
}

Status StreamWorkspaces::with(int device, void* stream, int64_t bytes, const Enqueue& enqueue) {
  cuda::StreamState state;
  if (Status s = cuda::state_of(device, stream, &state); !s.ok()) return s;
  Kept* kept = state.capturing || bytes > kLargestKept ? nullptr : kept_for(device, state.id);
  if (!kept) return with_own(device, stream, bytes, enqueue);
  std::lock_guard lock(kept->busy);
  if (kept->block.bytes < bytes) {
    if (kept->block.data) (void)cuda::release_in(device, stream, kept->block.data);
    if (Status s = allocate(device, stream, power_of_two(bytes), &kept->block); !s.ok()) return s;
  }
  Status done = enqueue(kept->block);
  if (done.ok()) return done;
  // Part of the call may have been launched: nobody knows what its control block holds.
  (void)cuda::release_in(device, stream, kept->block.data);
  kept->block = {nullptr, 0};
  return done;
}

}  // namespace tilewise
