// What a test must do to a device and the library never does: streams and captures of a caller's own, asked
// of the driver that is loaded, as these tests are linked with no CUDA library.
#ifndef TILEWISE_TESTS_SUPPORT_DRIVER_H_
#define TILEWISE_TESTS_SUPPORT_DRIVER_H_

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace tilewise::testing_support {

class Driver {
 public:
  static Driver& get() {
    static Driver driver;
    return driver;
  }

  // Work of a stream that is not `blocking` does not wait for the legacy default stream's.
  void* new_stream(int device, bool blocking = false) {
    enter(device);
    void* stream = nullptr;
    must(call<int(void**, unsigned)>("cuStreamCreate")(&stream, blocking ? 0 : 1), "cuStreamCreate");
    leave();
    return stream;
  }
  void destroy_stream(void* stream) {
    must(call<int(void*)>("cuStreamDestroy_v2")(stream), "cuStreamDestroy");
  }
  int begin_capture(void* stream) { return call<int(void*, int)>("cuStreamBeginCapture_v2")(stream, 2); }
  // The graph, or null where the capture was spoilt.
  void* end_capture(void* stream) {
    void* graph = nullptr;
    return call<int(void*, void**)>("cuStreamEndCapture")(stream, &graph) == 0 ? graph : nullptr;
  }
  // The device that is current for this thread, -1 = none.
  int current_device() {
    int device = -1;
    return call<int(int*)>("cuCtxGetDevice")(&device) == 0 ? device : -1;
  }
  // Bytes of the stream-ordered allocator that are in use.
  uint64_t pool_bytes(int device) {
    constexpr int kUsedNow = 7;  // CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    void* pool = nullptr;
    uint64_t bytes = 0;
    must(call<int(void**, int)>("cuDeviceGetDefaultMemPool")(&pool, device), "cuDeviceGetDefaultMemPool");
    must(call<int(void*, int, void*)>("cuMemPoolGetAttribute")(pool, kUsedNow, &bytes),
         "cuMemPoolGetAttribute");
    return bytes;
  }

  // A function of the driver, as its header declares it.
  template <typename F>
  F* call(const char* name) {
    void* found = library_ ? dlsym(library_, name) : nullptr;
    must(found ? 0 : -1, name);
    return reinterpret_cast<F*>(found);
  }
  static void must(int error, const char* what) {
    if (error == 0) return;
    std::fprintf(stderr, "%s: CUDA driver error %d\n", what, error);
    std::abort();
  }
  void enter(int device) {
    void* context = nullptr;  // the one that the runtime uses
    must(call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device), "cuDevicePrimaryCtxRetain");
    must(call<int(void*)>("cuCtxPushCurrent_v2")(context), "cuCtxPushCurrent");
  }
  void leave() {
    void* context = nullptr;
    must(call<int(void**)>("cuCtxPopCurrent_v2")(&context), "cuCtxPopCurrent");
  }

 private:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW)) {}

  void* library_;
};

}  // namespace tilewise::testing_support
#endif  // TILEWISE_TESTS_SUPPORT_DRIVER_H_
