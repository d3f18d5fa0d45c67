// The cache of a case: pages in an order that hides no fault, and the same rows, drawn in the same order, as
// the case would have without its page_size or cache_batch_idx.
#ifndef TILEWISE_REFERENCE_CASE_CACHE_H_
#define TILEWISE_REFERENCE_CASE_CACHE_H_

#include <string>

#include "core/params.h"
#include "reference/case.h"
#include "reference/case_tensor.h"
#include "reference/case_values.h"

namespace tilewise {

// i32 [batch, max_pages]. Page 0 belongs to nobody; entries behind a sequence's length are -1.
CaseTensor make_page_table(const Case& c, uint64_t seed);

// k or v, whose places `p` knows; what belongs to no sequence stays NaN.
void fill_cache(const ForwardParams& p, const Case& c, const std::string& name, Random& random,
                CaseTensor* tensor);

}  // namespace tilewise
#endif  // TILEWISE_REFERENCE_CASE_CACHE_H_
