#include "core/pages.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

namespace tilewise {

void FreePages::operator()(std::byte* data) const { std::free(data); }

Pages allocate_pages(size_t bytes) {
  constexpr size_t kAlignment = 256, kHugePage = size_t{2} << 20;
  const size_t unit = bytes < kHugePage / 2 ? kAlignment : kHugePage;
  if (bytes > SIZE_MAX - unit) return nullptr;
  const size_t rounded = (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit;
  void* data = std::aligned_alloc(unit, rounded);
#if defined(MADV_HUGEPAGE)
  if (data && unit == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
#endif
  return Pages(static_cast<std::byte*>(data));
}

}  // namespace tilewise
