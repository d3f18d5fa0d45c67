// Rivals: other people's attention, found at run time and timed in this process. Nothing is linked against
// them; one that is not on the machine, or cannot do the problem, says why and is listed as "not run".
#ifndef TILEWISE_CLI_RIVALS_RIVAL_H_
#define TILEWISE_CLI_RIVALS_RIVAL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/executor.h"
#include "tilewise/attention.h"

namespace tilewise::cli {

// One problem, bound to tensors and threads, ready to be timed.
class RivalCall {
 public:
  virtual ~RivalCall() = default;
  virtual Status run() = 0;
  virtual void wake() {}  // untimed: before and after a sample
  virtual void park() {}
  // What the last run wrote: o forward, dq backward; fp32 row-major, for a check that it did the same work.
  virtual const float* result() const = 0;
};

class Rival {
 public:
  virtual ~Rival() = default;
  virtual const char* name() const = 0;
  virtual std::string what() const = 0;  // library, version, how it is used: the row's `kernel`
  virtual int64_t scratch_bytes(const Problem& problem, int threads) const = 0;
  // A refusal is the reason for "not run". `executor` spreads heads where the rival has no threads of its
  // own. `step`: the forward of a backward problem, too, before it.
  virtual Expected<std::unique_ptr<RivalCall>> bind(const Problem& problem, bool step, const Tensors& tensors,
                                                    int threads, Executor& executor) = 0;
};

// A rival that lives in a process of its own, which times this library there too.
struct ForeignTimes {
  std::string what;
  double ours_median_ms = 0;
  double min_ms = 0, median_ms = 0, max_ms = 0;
  int repeats = 0;
};
using ForeignTimer = std::function<Expected<ForeignTimes>(
    const Problem& problem, bool step, const char* kernel, int threads, int repeats, uint64_t seed)>;

struct RivalEntry {
  std::string name;
  std::unique_ptr<Rival> rival;  // in this process,
  ForeignTimer foreign;          // or in another,
  std::string absent;            // or why not
  bool present() const { return rival || foreign; }
};

// "three-step", "three-step-again", "ggml", "pytorch", "cudnn", in this order; `wanted` empty = all.
std::vector<std::string> rival_names();
std::vector<RivalEntry> find_rivals(const std::vector<std::string>& wanted);

// Of two results of one problem, for one in 97 elements: whether they are the same work, not how exact they
// are.
double largest_difference(const tilewise_tensor& ours, const float* theirs);

// `again`: its backward from what ours is given: P is made again from q, k and lse instead of kept.
Expected<std::unique_ptr<Rival>> find_three_step(bool again = false);
// `folder`: where scripts/rivals.sh put it ("" = only the system's library path).
Expected<std::unique_ptr<Rival>> find_ggml(const std::string& folder);

// bench/torch_rival.py under the Python that scripts/rivals.sh made in `folder`.
Expected<ForeignTimer> find_pytorch(const std::string& folder);

// A shared library's symbols by name, for the life of the process unless closed.
class SharedLibrary {
 public:
  static Expected<SharedLibrary> open(const std::vector<std::string>& names, bool global = false);
  template <typename Function>
  bool find(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }
  const std::string& name() const { return name_; }
  void close();  // its symbols are gone

 private:
  SharedLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  void* symbol(const char* name) const;
  void* handle_;
  std::string name_;
};

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_RIVALS_RIVAL_H_
