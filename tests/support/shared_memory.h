// What kernels leave behind in the shared memory of a device's multiprocessors: filled with NaN, for the next
// kernel to find. The code is PTX, which the driver translates, as these tests are linked with no CUDA.
#ifndef TILEWISE_TESTS_SUPPORT_SHARED_MEMORY_H_
#define TILEWISE_TESTS_SUPPORT_SHARED_MEMORY_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cuda/runtime.h"
#include "tests/support/driver.h"

namespace tilewise::testing_support {

class SharedMemory {
 public:
  explicit SharedMemory(int device) : device_(device) {
    Driver& driver = Driver::get();
    driver.enter(device);
    const auto attribute = [&](int which) {
      int value = 0;
      Driver::must(driver.call<int(int*, int, int)>("cuDeviceGetAttribute")(&value, which, device),
                   "cuDeviceGetAttribute");
      return value;
    };
    multiprocessors_ = attribute(16);               // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    bytes_ = static_cast<unsigned>(attribute(97));  // ..._MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    Driver::must(driver.call<int(void**, const void*)>("cuModuleLoadData")(&module_, kCode),
                 "cuModuleLoadData");
    for (auto [function, name] : {std::pair(&fill_, "fill"), std::pair(&count_, "count")}) {
      Driver::must(
          driver.call<int(void**, void*, const char*)>("cuModuleGetFunction")(function, module_, name),
          "cuModuleGetFunction");
      constexpr int kMostDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
      Driver::must(driver.call<int(void*, int, int)>("cuFuncSetAttribute")(*function, kMostDynamicShared,
                                                                           static_cast<int>(bytes_)),
                   "cuFuncSetAttribute");
    }
    driver.leave();
    EXPECT_EQ(cuda::allocate(device, sizeof(uint32_t) * kWords, &words_).message(), "");
  }
  ~SharedMemory() {
    cuda::release(device_, words_);
    Driver& driver = Driver::get();
    driver.enter(device_);
    Driver::must(driver.call<int(void*)>("cuModuleUnload")(module_), "cuModuleUnload");
    driver.leave();
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  int multiprocessors() const { return multiprocessors_; }
  unsigned bytes() const { return bytes_; }  // that a block can have of it

  // Every byte 0xff, a NaN in each dtype that has one; on how many multiprocessors.
  int fill() {
    const std::vector<uint32_t> words = run(fill_);
    return static_cast<int>(std::count(words.begin() + 1, words.end(), 1u));
  }
  // Words of it that still are, on all multiprocessors.
  int64_t filled() {
    const std::vector<uint32_t> words = run(count_);
    return words[0];
  }

 private:
  static constexpr size_t kWords = 1025;  // a sum, then a word for each multiprocessor

  // A block for each multiprocessor, which holds all of its shared memory.
  std::vector<uint32_t> run(void* function) {
    Driver& driver = Driver::get();
    std::vector<uint32_t> words(kWords);
    constexpr int64_t kBytes = sizeof(uint32_t) * kWords;
    EXPECT_EQ(cuda::fill(device_, words_, 0, kBytes).message(), "");
    auto blocks = static_cast<unsigned>(multiprocessors_);
    void* arguments[] = {&words_, &bytes_, &blocks};
    using Launch = int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                       void**, void**);
    driver.enter(device_);
    Driver::must(driver.call<Launch>("cuLaunchKernel")(function, blocks, 1, 1, 1024, 1, 1, bytes_, nullptr,
                                                       arguments, nullptr),
                 "cuLaunchKernel");
    Driver::must(driver.call<int()>("cuCtxSynchronize")(), "cuCtxSynchronize");
    driver.leave();
    EXPECT_EQ(cuda::copy(device_, words.data(), words_, kBytes).message(), "");
    return words;
  }

  // A block waits, not for ever, until all have begun, so that no two have one multiprocessor.
  static constexpr const char* kCode = R"(
.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 s_memory[];

.visible .entry fill(.param .u64 words, .param .u32 bytes, .param .u32 blocks)
{
  .reg .pred %p;
  .reg .b32 %thread, %at, %end, %word, %sm, %n, %all, %tries;
  .reg .b64 %g, %g_sm;
  ld.param.u64 %g, [words];
  cvta.to.global.u64 %g, %g;
  ld.param.u32 %all, [bytes];
  mov.u32 %thread, %tid.x;
  mov.u32 %at, s_memory;
  add.u32 %end, %at, %all;
  mad.lo.u32 %at, %thread, 4, %at;
  mov.b32 %word, 0xffffffff;
STORE:
  setp.ge.u32 %p, %at, %end;
  @%p bra STORED;
  st.volatile.shared.b32 [%at], %word;
  add.u32 %at, %at, 4096;
  bra STORE;
STORED:
  bar.sync 0;
  setp.ne.u32 %p, %thread, 0;
  @%p bra DONE;
  mov.u32 %sm, %smid;
  mad.wide.u32 %g_sm, %sm, 4, %g;
  mov.b32 %word, 1;
  st.global.b32 [%g_sm + 4], %word;
  atom.global.add.u32 %n, [%g], 1;
  ld.param.u32 %all, [blocks];
  mov.b32 %tries, 0;
WAIT:
  ld.volatile.global.u32 %n, [%g];
  setp.ge.u32 %p, %n, %all;
  @%p bra DONE;
  add.u32 %tries, %tries, 1;
  setp.lt.u32 %p, %tries, 1000000;
  @%p bra WAIT;
DONE:
  ret;
}

.visible .entry count(.param .u64 words, .param .u32 bytes, .param .u32 blocks)
{
  .reg .pred %p;
  .reg .b32 %thread, %at, %end, %word, %n, %all;
  .reg .b64 %g;
  ld.param.u64 %g, [words];
  cvta.to.global.u64 %g, %g;
  ld.param.u32 %all, [bytes];
  mov.u32 %thread, %tid.x;
  mov.u32 %at, s_memory;
  add.u32 %end, %at, %all;
  mad.lo.u32 %at, %thread, 4, %at;
  mov.b32 %n, 0;
LOAD:
  setp.ge.u32 %p, %at, %end;
  @%p bra LOADED;
  ld.volatile.shared.b32 %word, [%at];
  setp.eq.u32 %p, %word, 0xffffffff;
  @%p add.u32 %n, %n, 1;
  add.u32 %at, %at, 4096;
  bra LOAD;
LOADED:
  red.global.add.u32 [%g], %n;
  ret;
}
)";

  int device_, multiprocessors_ = 0;
  unsigned bytes_ = 0;
  void *module_ = nullptr, *fill_ = nullptr, *count_ = nullptr, *words_ = nullptr;
};

}  // namespace tilewise::testing_support
#endif  // TILEWISE_TESTS_SUPPORT_SHARED_MEMORY_H_
