// CaseData: the tensors of a case in memory, ready for the public API (`tensors`, `problem`) and for the
// oracle and single kernel rows (`params`); both are made from the case, neither from the other.
//
// Every tensor lies in a buffer of its own between guard bytes; what lies between the rows of a strided
// tensor is NaN. Outputs are poisoned before a run; after it, everything that the call does not own must be
// unchanged.
#ifndef TILEWISE_REFERENCE_CASE_DATA_H_
#define TILEWISE_REFERENCE_CASE_DATA_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/params.h"
#include "reference/case.h"
#include "reference/case_tensor.h"
#include "reference/tolerance.h"

namespace tilewise {

struct CaseData {
  // `dtype` of q, k, v; `seed` of every random number.
  CaseData(const Case& c, DType dtype, uint64_t seed);
  CaseData(CaseData&&) = default;

  const Case source;
  const DType dtype;
  const uint64_t seed;

  CaseTensor q, k, v, o, lse, bias, mask, q_lengths, kv_lengths, kv_starts, q_offset, cu_seqlens_q,
      cu_seqlens_kv, page_table, cache_batch_idx, k_scales, v_scales, segment_ids_q, segment_ids_kv,
      kv_ranges, alibi_slopes, sinks, dout, dlse, delta, dq, dk, dv, dbias, dsinks;

  // body(name, tensor) for every tensor of the case.
  template <typename F>
  void for_each_tensor(F&& body) {
    const std::pair<const char*, CaseTensor*> all[] = {{"q", &q},
                                                       {"k", &k},
                                                       {"v", &v},
                                                       {"o", &o},
                                                       {"lse", &lse},
                                                       {"bias", &bias},
                                                       {"mask", &mask},
                                                       {"q_lengths", &q_lengths},
                                                       {"kv_lengths", &kv_lengths},
                                                       {"kv_starts", &kv_starts},
                                                       {"q_offset", &q_offset},
                                                       {"cu_seqlens_q", &cu_seqlens_q},
                                                       {"cu_seqlens_kv", &cu_seqlens_kv},
                                                       {"page_table", &page_table},
                                                       {"cache_batch_idx", &cache_batch_idx},
                                                       {"k_scales", &k_scales},
                                                       {"v_scales", &v_scales},
                                                       {"segment_ids_q", &segment_ids_q},
                                                       {"segment_ids_kv", &segment_ids_kv},
                                                       {"kv_ranges", &kv_ranges},
                                                       {"alibi_slopes", &alibi_slopes},
                                                       {"sinks", &sinks},
                                                       {"dout", &dout},
                                                       {"dlse", &dlse},
                                                       {"delta", &delta},
                                                       {"dq", &dq},
                                                       {"dk", &dk},
                                                       {"dv", &dv},
                                                       {"dbias", &dbias},
                                                       {"dsinks", &dsinks}};
    for (const auto& [name, tensor] : all) {
      if (tensor->present()) body(name, *tensor);
    }
  }

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

// Writes NaN into every row, key and bias of the case's data that nothing may look at.
void poison_what_nobody_sees(CaseData* data);

// The output that uses most of its allowance.
Comparison compare_outputs(CaseData& data, Direction direction, const Expectation& expectation,
                           double units = 8.0);

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_CASE_DATA_H_
