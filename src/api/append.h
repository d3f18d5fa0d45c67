// Appending in two steps, so that a call that does more can check everything before anything is written.
#ifndef TILEWISE_API_APPEND_H_
#define TILEWISE_API_APPEND_H_

#include "api/context.h"
#include "core/append.h"

namespace tilewise {

// Everything that can be refused. A device's values are looked at with check_data.
Status check_append(const tilewise_context& context, const tilewise_append& append, void* stream,
                    AppendParams* params);
Status run_append(const tilewise_context& context, const tilewise_append& append, const AppendParams& params,
                  void* stream);

}  // namespace tilewise
#endif  // TILEWISE_API_APPEND_H_
