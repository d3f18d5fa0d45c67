// Index tensors of a device, brought to the host so that values.cpp and append.cpp can look at them: what
// check_data does on a GPU. It waits for the device, so nothing of it is legal while a stream is captured.
#ifndef TILEWISE_API_DEVICE_VALUES_H_
#define TILEWISE_API_DEVICE_VALUES_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "core/append.h"
#include "cuda/runtime.h"
#include "tilewise/status.h"

namespace tilewise {

// Copies that live as long as this does.
class HostIndices {
 public:
  // Copies `bytes` from a device to the host.
  using Copy = std::function<Status(void* to, const void* from, int64_t bytes)>;
  explicit HostIndices(Copy copy) : copy_(std::move(copy)) {}

  // `params` reads its lengths, offsets, pages and ranges from host memory afterwards; nothing else of it
  // does.
  Status fetch(ForwardParams& params);
  Status fetch(AppendParams& params);

 private:
  // A tensor of [batch, rows, inner].
  Status fetch(IndexTensor& tensor, int64_t batch, int64_t rows = 1, int64_t inner = 1);

  Copy copy_;
  std::vector<std::vector<std::byte>> copies_;
};

// `check` of params whose indices lie on a device, which is waited for.
template <typename Params, typename Check>
Status check_device_values(int device, Params params, Check&& check) {
  if (Status s = cuda::synchronize(device); !s.ok()) return s;
  HostIndices host(
      [device](void* to, const void* from, int64_t bytes) { return cuda::copy(device, to, from, bytes); });
  if (Status s = host.fetch(params); !s.ok()) return s;
  return check(params);
}

}  // namespace tilewise
#endif  // TILEWISE_API_DEVICE_VALUES_H_
