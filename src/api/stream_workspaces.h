// StreamWorkspaces: the one-call form's own workspaces on CUDA devices. Calls of one stream follow each
// other, so they share a block that stays between them: allocating and zeroing one costs as much as the
// launch. What is large, or being captured into a graph that other streams may replay, gets memory of its own
// in the order of the stream.
#ifndef TILEWISE_API_STREAM_WORKSPACES_H_
#define TILEWISE_API_STREAM_WORKSPACES_H_

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "tilewise/status.h"

namespace tilewise {

class StreamWorkspaces {
 public:
  using Enqueue = std::function<Status(const tilewise_workspace&)>;
  static constexpr size_t kMostStreams = 32;
  static constexpr int64_t kLargestKept = int64_t{4} << 20;

  StreamWorkspaces() = default;
  ~StreamWorkspaces();  // waits for the devices
  StreamWorkspaces(const StreamWorkspaces&) = delete;
  StreamWorkspaces& operator=(const StreamWorkspaces&) = delete;

  // `enqueue` gets a workspace of `bytes` for work on `stream`, its control block zero.
  Status with(int device, void* stream, int64_t bytes, const Enqueue& enqueue);

 private:
  // Held while a call enqueues: launches of two threads must not lie between each other.
  struct Kept {
    std::mutex busy;
    int device = 0;
    uint64_t stream_id = 0;
    tilewise_workspace block{nullptr, 0};
  };
  Kept* kept_for(int device, uint64_t stream_id);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Kept>> kept_;
};

}  // namespace tilewise
#endif  // TILEWISE_API_STREAM_WORKSPACES_H_
