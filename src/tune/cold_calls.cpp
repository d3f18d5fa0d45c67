#include "tune/cold_calls.h"

#include <algorithm>

#include "core/cost.h"
#include "cuda/runtime.h"

namespace tilewise::tune {
namespace {

int64_t bytes_of(const tilewise_tensor& t) {
  return static_cast<int64_t>(static_cast<double>(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]) *
                              element_bytes(t.dtype));
}

}  // namespace

Expected<ColdCalls> ColdCalls::make(const PlannedCall& call, const Tensors& tensors, int64_t least_bytes) {
  constexpr int64_t kMostCopies = 4096;
  ColdCalls cold(call);
  cold.tensors_.push_back(tensors);
  const int64_t each = std::max<int64_t>(1, bytes_of(tensors.k) + bytes_of(tensors.v));
  const int64_t copies = std::min(kMostCopies, (least_bytes + each - 1) / each);
  for (int64_t n = 1; n < copies; ++n) {
    Tensors next = tensors;
    if (!cold.add(next.k) || !cold.add(next.v)) break;
    cold.tensors_.push_back(next);
  }
  return cold;
}

ColdCalls::~ColdCalls() {
  for (void* memory : memory_) cuda::release(call_->plan().device_index, memory);
}

bool ColdCalls::add(tilewise_tensor& tensor) {
  const int device = call_->plan().device_index;
  const int64_t bytes = bytes_of(tensor);
  void* memory = nullptr;
  if (!cuda::allocate(device, bytes, &memory).ok()) return false;
  memory_.push_back(memory);
  if (!cuda::copy(device, memory, tensor.data, bytes).ok()) return false;
  tensor.data = memory;
  return true;
}

Status ColdCalls::run(void* stream) {
  next_ = (next_ + 1) % tensors_.size();
  return call_->run_on(tensors_[next_], stream);
}

}  // namespace tilewise::tune
