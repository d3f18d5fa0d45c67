// Every rule of a Problem, once. A broken rule gives one sentence: the field, what was given, what is
// accepted.
#ifndef TILEWISE_CORE_VALIDATE_H_
#define TILEWISE_CORE_VALIDATE_H_

#include "tilewise/problem.h"

namespace tilewise {

Status validate(const tilewise_problem& problem);

// What the dtypes of k and v are to each other and to scales: quantised both or neither, scales only then.
// `prefix` stands before k and v in the sentence: "dtype_" where fields of a problem are meant.
Status check_quantized(const char* prefix, DType k, DType v, bool scales);

// What a call's q_offset_value and windows may be, so that i + q_offset + window cannot overflow.
constexpr int64_t kMaxOffset = int64_t{1} << 60;

}  // namespace tilewise
#endif  // TILEWISE_CORE_VALIDATE_H_
