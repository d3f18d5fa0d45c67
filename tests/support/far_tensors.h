// The tensors of a call with their elements elsewhere, and what is left of each: the tests of far strides and
// sizes.
#ifndef TILEWISE_TESTS_SUPPORT_FAR_TENSORS_H_
#define TILEWISE_TESTS_SUPPORT_FAR_TENSORS_H_

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/kernel_run.h"
#include "tests/support/sparse_memory.h"

namespace tilewise::testing_support {

// Element `at` of a tensor as an integer: its bytes, or one bit.
inline uint64_t bits_at(const void* data, DType dtype, int64_t at) {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (dtype == DType::bit) return (static_cast<uint64_t>(bytes[at / 8]) >> (at % 8)) & 1;
  const int64_t size = element_bytes(dtype);
  uint64_t value = 0;
  std::memcpy(&value, bytes + at * size, static_cast<size_t>(size));
  return value;
}

inline void put_bits(void* data, DType dtype, int64_t at, uint64_t value) {
  auto* bytes = static_cast<std::byte*>(data);
  if (dtype == DType::bit) {
    bytes[at / 8] |= static_cast<std::byte>(value << (at % 8));  // into zeros
    return;
  }
  const int64_t size = element_bytes(dtype);
  std::memcpy(bytes + at * size, &value, static_cast<size_t>(size));
}

using Index = std::vector<int64_t>;

inline int64_t offset_of(const Tensor& tensor, const Index& index) {
  int64_t at = 0;
  for (int n = 0; n < tensor.rank; ++n) at += index[static_cast<size_t>(n)] * tensor.stride[n];
  return at;
}

// `far` holds the elements of `close`, each at the index that move() makes of its own.
template <typename Move>
void copy_elements(const Tensor& close, const Tensor& far, Move&& move) {
  Index moved;
  for_each_element(close, [&](const Index& index, int64_t at, int64_t) {
    moved = index;
    move(&moved);
    put_bits(far.data, far.type(), offset_of(far, moved), bits_at(close.data, close.type(), at));
  });
}

// What `far` has of the elements of `close`, in their order.
template <typename Move>
std::vector<uint64_t> moved_bits(const Tensor& close, const Tensor& far, Move&& move) {
  std::vector<uint64_t> bits;
  Index moved;
  for_each_element(close, [&](const Index& index, int64_t, int64_t) {
    moved = index;
    move(&moved);
    bits.push_back(bits_at(far.data, far.type(), offset_of(far, moved)));
  });
  return bits;
}

inline void stay(Index*) {}

inline std::vector<std::vector<uint64_t>> output_bits_of(CaseData& data, Direction direction) {
  std::vector<std::vector<uint64_t>> bits;
  for (const auto& [name, output] : data.outputs(direction))
    bits.push_back(moved_bits(output->view(), output->view(), stay));
  return bits;
}

// `kernel`, forced, on tensors of the caller's; unsupported where it refuses the problem.
inline Status run_on(const Kernel& kernel, const Problem& problem, const Tensors& tensors) {
  Limits limits;
  limits.kernel = kernel.name;
  limits.threads = 2;
  const Context& context = shared_context().context();
  const auto plan = tilewise::plan(problem, context, limits);
  if (!plan) return plan.status();
  Workspace workspace(*plan);
  return kernel.op == Op::forward ? forward(context, *plan, tensors, workspace)
                                  : backward(context, *plan, tensors, workspace);
}

// The data of a line for one kernel, with o and lse as a right forward leaves them.
inline CaseData data_for(const Kernel& kernel, const std::string& line) {
  CaseData data(parsed(line + words_for(kernel)), dtype_for(kernel), 5);
  if (kernel.op == Op::backward) data.set_forward_result(expect_forward(data.params(Direction::forward)));
  return data;
}

struct Place {
  const char* name;
  tilewise_tensor tilewise_tensors::*tensor;
  bool is_rows = false;  // the last dimension has to be contiguous
};
constexpr Place kPlaces[] = {{"q", &tilewise_tensors::q, true},
                             {"k", &tilewise_tensors::k, true},
                             {"v", &tilewise_tensors::v, true},
                             {"o", &tilewise_tensors::o, true},
                             {"lse", &tilewise_tensors::lse},
                             {"bias", &tilewise_tensors::bias},
                             {"mask", &tilewise_tensors::mask},
                             {"q_lengths", &tilewise_tensors::q_lengths},
                             {"kv_lengths", &tilewise_tensors::kv_lengths},
                             {"kv_starts", &tilewise_tensors::kv_starts},
                             {"q_offset", &tilewise_tensors::q_offset},
                             {"page_table", &tilewise_tensors::page_table},
                             {"cache_batch_idx", &tilewise_tensors::cache_batch_idx},
                             {"k_scales", &tilewise_tensors::k_scales},
                             {"v_scales", &tilewise_tensors::v_scales},
                             {"cu_seqlens_q", &tilewise_tensors::cu_seqlens_q},
                             {"cu_seqlens_kv", &tilewise_tensors::cu_seqlens_kv},
                             {"segment_ids_q", &tilewise_tensors::segment_ids_q},
                             {"segment_ids_kv", &tilewise_tensors::segment_ids_kv},
                             {"kv_ranges", &tilewise_tensors::kv_ranges},
                             {"alibi_slopes", &tilewise_tensors::alibi_slopes},
                             {"sinks", &tilewise_tensors::sinks},
                             {"dout", &tilewise_tensors::dout, true},
                             {"dlse", &tilewise_tensors::dlse},
                             {"delta", &tilewise_tensors::delta},
                             {"dq", &tilewise_tensors::dq, true},
                             {"dk", &tilewise_tensors::dk, true},
                             {"dv", &tilewise_tensors::dv, true},
                             {"dbias", &tilewise_tensors::dbias},
                             {"dsinks", &tilewise_tensors::dsinks}};

}  // namespace tilewise::testing_support
#endif  // TILEWISE_TESTS_SUPPORT_FAR_TENSORS_H_
