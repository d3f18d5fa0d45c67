// One planned call on copies of its keys and values, in turns: so many that none of them finds its own in a
// cache.
#ifndef TILEWISE_TUNE_COLD_CALLS_H_
#define TILEWISE_TUNE_COLD_CALLS_H_

#include <vector>

#include "tune/problem_data.h"

namespace tilewise::tune {

// On a CUDA device.
class ColdCalls {
 public:
  // Copies of k and v of `tensors`, these among them, of `least_bytes` in all or more; as many as memory
  // allows where it has no room for that.
  static Expected<ColdCalls> make(const PlannedCall& call, const Tensors& tensors, int64_t least_bytes);
  ColdCalls(ColdCalls&& other) noexcept
      : call_(other.call_), tensors_(std::move(other.tensors_)), memory_(std::move(other.memory_)) {
    other.memory_.clear();
  }
  ColdCalls& operator=(ColdCalls&&) = delete;
  ~ColdCalls();

  int copies() const { return static_cast<int>(tensors_.size()); }
  Status run(void* stream);  // the next one

 private:
  explicit ColdCalls(const PlannedCall& call) : call_(&call) {}
  bool add(tilewise_tensor& tensor);

  const PlannedCall* call_;
  std::vector<Tensors> tensors_;
  std::vector<void*> memory_;
  size_t next_ = 0;
};

}  // namespace tilewise::tune
#endif  // TILEWISE_TUNE_COLD_CALLS_H_
