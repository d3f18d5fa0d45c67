// CaseData: the tensors of a case in memory, ready for the public API (`tensors`, `problem`) and for the
// oracle and single kernel rows (`params`); both are made from the case, neither from the other.
//
// Every tensor lies in a buffer of its own between guard bytes; what lies between the rows of a strided
// tensor is NaN. Outputs are poisoned before a run; after it, everything that the call does not own must be
// unchanged.
#ifndef TILEWISE_REFERENCE_CASE_DATA_H_
#define TILEWISE_REFERENCE_CASE_DATA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/params.h"
#include "reference/case.h"
#include "reference/tolerance.h"

namespace tilewise {

enum class Poison { nan, large };

// One tensor's memory: guard, elements (with gaps), guard.
class CaseTensor {
 public:
  CaseTensor() = default;
  CaseTensor(CaseTensor&&) = default;
  CaseTensor& operator=(CaseTensor&&) = default;
  // `lead` elements lie before the view's first one.
  CaseTensor(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> stride, int64_t lead);

  bool present() const { return memory_ != nullptr; }
  void* data() { return memory_.get() + kGuard + lead_bytes_; }
  const void* data() const { return memory_.get() + kGuard + lead_bytes_; }
  const Tensor& view() const { return view_; }
  Tensor view_as_input() const;
  DType dtype() const { return view_.type(); }

  void fill(Poison poison);
  // Keeps a copy, to find out later what was changed.
  void remember();
  // Empty, or what was changed since remember() outside `owned` (element offsets from data()).
  std::string changed_outside(const std::vector<int64_t>& owned) const;

 private:
  static constexpr int64_t kGuard = 256;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> memory_{nullptr, nullptr};
  std::vector<std::byte> remembered_;
  int64_t bytes_ = 0, lead_bytes_ = 0;
  Tensor view_;
};

struct CaseData {
  // `dtype` of q, k, v; `seed` of every random number.
  CaseData(const Case& c, DType dtype, uint64_t seed);
  CaseData(CaseData&&) = default;

  const Case source;
  const DType dtype;
  const uint64_t seed;

  CaseTensor q, k, v, o, lse, bias, mask, q_lengths, kv_lengths, kv_starts, q_offset, cu_seqlens_q,
      cu_seqlens_kv, segment_ids_q, segment_ids_kv, kv_ranges, alibi_slopes, sinks, dout, dlse, delta, dq, dk,
      dv, dbias, dsinks;

  Problem problem(Direction direction) const;
  Tensors tensors(Direction direction) const;
  // For either direction; what a direction lacks is null.
  BackwardParams params(Direction direction) const;

  // Writes o, lse and delta as a correct forward would have: the backward's input.
  void set_forward_result(const Expectation& forward);

  // Outputs of a direction, by name.
  std::vector<std::pair<std::string, CaseTensor*>> outputs(Direction direction);
  // Fills outputs (for `accumulate`, dq, dk and dv keep their values) and remembers all buffers.
  void poison_outputs(Direction direction, Poison poison);
  // Empty, or the first sentence about an input, guard or gap that was written.
  std::string damage(Direction direction, const Expectation& expectation);
};

// The output that uses most of its allowance.
Comparison compare_outputs(CaseData& data, Direction direction, const Expectation& expectation,
                           double units = 8.0);

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_CASE_DATA_H_
