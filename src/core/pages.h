// Memory on huge pages where the system gives them. At the row stride of [row, head, dim] tensors every row
// stands on a page of its own, and walking the page tables for it costs a CPU kernel more than fetching it.
#ifndef TILEWISE_CORE_PAGES_H_
#define TILEWISE_CORE_PAGES_H_

#include <cstddef>
#include <memory>

namespace tilewise {

struct FreePages {
  void operator()(std::byte* data) const;
};
using Pages = std::unique_ptr<std::byte, FreePages>;

// Uninitialised, aligned to 256 bytes or better; blocks of 1 MB and more are rounded up to whole huge pages.
// Null where there is not enough.
Pages allocate_pages(size_t bytes);

}  // namespace tilewise
#endif  // TILEWISE_CORE_PAGES_H_
