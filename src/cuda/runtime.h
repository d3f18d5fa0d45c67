// The device as the rooms above see it: no CUDA header, no link to a driver. Where this build has no CUDA
// code, built() is false and everything else refuses with a sentence (absent.cpp). Machines without a driver
// are asked and answer so; nothing here fails to load on them.
#ifndef TILEWISE_CUDA_RUNTIME_H_
#define TILEWISE_CUDA_RUNTIME_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/append.h"
#include "core/merge.h"
#include "tilewise/status.h"

namespace tilewise::cuda {

bool built();
std::string toolkit_text();  // "CUDA 13.0", or why there is none

// Versions as CUDA counts them, 1000 * major + 10 * minor; found 0 = no driver.
int driver_needed();
int driver_found();
std::string version_text(int version);  // "13.0"

// Devices that a working driver shows; a status says why there are none.
Expected<int> device_count();
Expected<tilewise_device_info> query(int index);

// Memory of a device. A failed allocation leaves nothing behind, and the next call works.
Status allocate(int device, int64_t bytes, void** data);
void release(int device, void* data);
Status copy(int device, void* to, const void* from, int64_t bytes);  // either way; waits
Status fill(int device, void* data, int byte, int64_t bytes);        // waits
Expected<int64_t> free_bytes(int device);

// In the order of a stream, and so legal inside a capture.
Status allocate_in(int device, void* stream, int64_t bytes, void** data);
Status release_in(int device, void* stream, void* data);
Status zero_in(int device, void* stream, void* data, int64_t bytes);
struct StreamState {
  uint64_t id =
      0;  // no other stream of the process ever has it, whatever handle names it; 0 while it captures
  bool capturing = false;
};
Status state_of(int device, void* stream, StreamState* state);
Status synchronize(int device);  // waits for everything, and reports what has failed

// Folds a part into (o, lse), in the order of a stream.
Status merge(int device, void* stream, const MergeParts& parts);
// New rows into a cache, in the order of a stream.
Status append(int device, void* stream, const AppendParams& rows);

// A call that is timed on the device's own clock: `calls` launches in a graph, replayed between two events.
class GraphTimer {
 public:
  using Launch = std::function<Status(void* stream)>;
  static Expected<GraphTimer> capture(int device, int calls, const Launch& launch);
  GraphTimer(GraphTimer&&) noexcept;
  GraphTimer& operator=(GraphTimer&&) noexcept;
  ~GraphTimer();
  Expected<double> milliseconds();  // of one call
  int calls() const;

 private:
  struct State;
  explicit GraphTimer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// What the device can do at most, in bursts of a few milliseconds: bf16 products on the matrix units, and
// bytes read from memory.
class Peak {
 public:
  static Expected<Peak> make(int device);
  Peak(Peak&&) noexcept;
  Peak& operator=(Peak&&) noexcept;
  ~Peak();
  Expected<double> matrix_flops();  // a second
  Expected<double> read_bytes();    // a second

 private:
  struct State;
  explicit Peak(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tilewise::cuda
#endif  // TILEWISE_CUDA_RUNTIME_H_
