// MergeParts: what folding a part into (o, lse) receives, on any device. Checked by api/.
#ifndef TILEWISE_CORE_MERGE_H_
#define TILEWISE_CORE_MERGE_H_

#include "core/params.h"

namespace tilewise {

struct MergeParts {
  RowTensor o, o_part;
  RowStats lse, lse_part;
  int64_t batch, rows, heads, dim;
};

}  // namespace tilewise
#endif  // TILEWISE_CORE_MERGE_H_
