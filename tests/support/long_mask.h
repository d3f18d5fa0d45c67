// A problem whose mask of 46342 x 46342 has more than 2^31 elements, on sparse memory. Only the first and the
// last rows see keys, the ones before them, so that few tiles are computed.
#ifndef TILEWISE_TESTS_SUPPORT_LONG_MASK_H_
#define TILEWISE_TESTS_SUPPORT_LONG_MASK_H_

#include <algorithm>
#include <vector>

#include "tests/support/far_tensors.h"

namespace tilewise::testing_support {

struct LongMask {
  static constexpr int64_t kLength = 46342, kSeeing = 40, kReach = 16;
  static constexpr int64_t kElements = kLength * kLength;

  // `memory` is zeros.
  LongMask(const SparseMemory& memory, DType mask_dtype, DType dtype)
      : data(parsed("name=long seqlen_q=46342 head_dim=8 kv_ranges=prefix:1 poison_unseen=0"), dtype, 5),
        mask(memory.data(), mask_dtype, {1, 1, kLength, kLength}) {
    auto* ranges = static_cast<int32_t*>(data.kv_ranges.data());
    std::fill_n(ranges, 2 * kLength, 0);
    mask.flags |= TILEWISE_READ_ONLY;
    for (int64_t i = 0; i < kLength; ++i) {
      if (i == kSeeing) i = kLength - kSeeing;
      if (i < 2 || i >= kLength - 2) chosen.push_back({0, i});
      const int64_t first = std::max<int64_t>(0, i - kReach);
      ranges[2 * i] = static_cast<int32_t>(first);
      ranges[2 * i + 1] = static_cast<int32_t>(i + 1);
      for (int64_t j = first; j <= i; ++j) {
        if ((i * i + j) % 3 != 0) put_bits(mask.data, mask_dtype, i * kLength + j, 1);
      }
    }
  }

  Problem problem(Direction direction) {
    Problem problem = data.problem(direction);
    problem.features |= TILEWISE_HAS_MASK;
    problem.dtype_mask = mask.dtype;
    for (int n = 0; n < 4; ++n) problem.mask_shape[n] = mask.shape[n];
    return problem;
  }
  // Of the chosen rows; backward's on o and lse as the data has them.
  Expectation answer(Direction direction) {
    BackwardParams params = data.params(direction);
    params.mask = {mask.data, mask.type(), 0, 0, kLength, 1};
    return direction == Direction::forward ? expect_forward(params, chosen)
                                           : expect_backward(params, chosen, chosen);
  }
  // The square of the length is what these take: time, and scores in memory.
  static bool is_for(const Kernel& kernel) {
    return kernel.target != Target::reference && kernel.form != Form::standard;
  }

  CaseData data;
  Tensor mask;
  std::vector<RowId> chosen;
};

}  // namespace tilewise::testing_support
#endif  // TILEWISE_TESTS_SUPPORT_LONG_MASK_H_
