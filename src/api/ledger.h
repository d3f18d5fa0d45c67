// An allocator for tests that keeps count of what it gave and got back.
#ifndef TILEWISE_API_LEDGER_H_
#define TILEWISE_API_LEDGER_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "tilewise/context.h"

namespace tilewise::made_up {

struct Ledger {
  std::atomic<int64_t> bytes{0}, calls{0};  // held now; handed out so far
  std::atomic<bool> refuse{false};

  ContextOptions options() {
    ContextOptions o;
    o.allocate_user = this;
    o.allocate = [](void* user, size_t bytes, size_t alignment) -> void* {
      auto* self = static_cast<Ledger*>(user);
      if (self->refuse) return nullptr;
      EXPECT_EQ(alignment, 256u);
      self->bytes += static_cast<int64_t>(bytes);
      ++self->calls;
      return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    };
    o.release = [](void* user, void* data, size_t bytes) {
      static_cast<Ledger*>(user)->bytes -= static_cast<int64_t>(bytes);
      std::free(data);
    };
    return o;
  }
};

}  // namespace tilewise::made_up
#endif  // TILEWISE_API_LEDGER_H_
