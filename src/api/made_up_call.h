// A small call for tests: owns its memory, and every tensor may be bent before use.
#ifndef TILEWISE_API_MADE_UP_CALL_H_
#define TILEWISE_API_MADE_UP_CALL_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "tilewise/attention.h"

namespace tilewise::made_up {

struct Call {
  static constexpr int64_t kBatch = 2, kRows = 3, kKeys = 5, kHeads = 4, kHeadsKv = 2, kDim = 8, kDimV = 6;
  std::deque<std::vector<float>> floats;
  std::deque<std::vector<int32_t>> ints;
  Tensors t{};
  Problem options;

  Tensor real(std::initializer_list<int64_t> shape, float fill) {
    size_t n = 1;
    for (int64_t s : shape) n *= static_cast<size_t>(s);
    auto& data = floats.emplace_back(n + 1, fill);  // never empty: data is never NULL
    for (size_t i = 0; fill != 0 && i < n; ++i)
      data[i] = fill * static_cast<float>((i * 37 + floats.size() * 11) % 19) / 19;
    return Tensor(data.data(), shape);
  }
  Tensor whole(std::initializer_list<int64_t> shape, std::vector<int32_t> values) {
    return Tensor(ints.emplace_back(std::move(values)).data(), shape);
  }

  Call() {
    t.q = real({kBatch, kRows, kHeads, kDim}, 1);
    t.k = real({kBatch, kKeys, kHeadsKv, kDim}, 1);
    t.v = real({kBatch, kKeys, kHeadsKv, kDimV}, 1);
    t.o = real({kBatch, kRows, kHeads, kDimV}, 0);
    t.lse = real({kBatch, kHeads, kRows}, 0);
  }
  // After a forward call: what backward needs besides.
  void make_backward() {
    options.direction = TILEWISE_BACKWARD;
    t.dout = real({kBatch, kRows, kHeads, kDimV}, 1);
    t.dq = real({kBatch, kRows, kHeads, kDim}, 0);
    t.dk = real({kBatch, kKeys, kHeadsKv, kDim}, 0);
    t.dv = real({kBatch, kKeys, kHeadsKv, kDimV}, 0);
  }
};

// Forces the oracle in both directions, so that tests of the border do not depend on this machine's kernels.
inline Context reference_context(ContextOptions options = {}) {
  options.kernel = "forward_reference_f64,backward_reference_f64";
  auto context = Context::create(options);
  return std::move(*context);
}

}  // namespace tilewise::made_up
#endif  // TILEWISE_API_MADE_UP_CALL_H_
