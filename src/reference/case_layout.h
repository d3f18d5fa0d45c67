// Tensors of a case in the layouts that it asks for; their elements are not set.
#ifndef TILEWISE_REFERENCE_CASE_LAYOUT_H_
#define TILEWISE_REFERENCE_CASE_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "reference/case.h"
#include "reference/case_tensor.h"

namespace tilewise {

// [batch, rows, heads, dim] (packed: [total, heads, dim]).
CaseTensor make_rows(const Case& c, const std::string& name, DType dtype, bool packed, int64_t batch,
                     int64_t rows, int64_t total, int64_t heads, int64_t dim);
// f32 [batch, heads, rows] (packed: [heads, total]); layout "rows_first" puts heads innermost.
CaseTensor make_stats(const Case& c, const std::string& name);
// "b1qk" -> sizes; layout "padded" leaves five elements between rows.
CaseTensor make_scores(const Case& c, const std::string& name, const std::string& letters, DType dtype);
// f32 [blocks, heads_kv], or [blocks, groups, heads_kv] where the case has scale_rows; layout "padded" leaves
// gaps.
CaseTensor make_scales(const Case& c, const std::string& name, int64_t blocks, int64_t rows);
CaseTensor make_plain(DType dtype, std::vector<int64_t> shape);
CaseTensor make_integers(DType dtype, const std::vector<int64_t>& values);

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_CASE_LAYOUT_H_
