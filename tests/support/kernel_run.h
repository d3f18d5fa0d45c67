// One kernel, forced by name through the public API, on the data of a case: with guarded, poisoned scratch, a
// control block that must end zero, and proof of which kernel ran.
#ifndef TILEWISE_TESTS_SUPPORT_KERNEL_RUN_H_
#define TILEWISE_TESTS_SUPPORT_KERNEL_RUN_H_

#include <string>
#include <vector>

#include "core/kernel.h"
#include "reference/case_data.h"
#include "tilewise/attention.h"

namespace tilewise::testing_support {

// A context with room for `threads`, whose log lines are kept.
class LoggedContext {
 public:
  explicit LoggedContext(int threads);
  const Context& context() const { return *context_; }
  const std::vector<std::string>& lines() const { return *lines_; }
  void clear() { lines_->clear(); }

 private:
  std::unique_ptr<std::vector<std::string>> lines_;
  std::unique_ptr<Context> context_;
};

LoggedContext& shared_context();

// The first CUDA device, or why there is none.
const Expected<DeviceInfo>& cuda_device();

struct RunOptions {
  int threads = 1;
  Poison poison = Poison::nan;
  const DeviceInfo* device =
      nullptr;  // a CUDA device, to which the data is copied and from which it comes back
};

struct RunResult {
  bool ran = false;
  std::string refusal;  // the planner's words where the kernel refused
  std::string failure;  // empty, or what went wrong besides the numbers
};

// Poisons the outputs of `data` and runs. `kernel` null: whatever the planner chooses.
RunResult run_kernel(LoggedContext& logged, const char* kernel, CaseData& data, Direction direction,
                     const RunOptions& options = {});

// The kernels of the table that serve a direction on a CPU, or on a CUDA device.
std::vector<const Kernel*> kernels_of(Direction direction, bool cuda = false);

// The case of a line; stops the program with a sentence where it is wrong.
Case parsed(const std::string& line);

// The words that a case's line needs besides where the kernel reads a quantised cache, and the dtype of what
// is not in it.
std::string words_for(const Kernel& kernel);
DType dtype_for(const Kernel& kernel);

// Bytes of all owned output elements, to compare runs bit by bit.
std::vector<std::byte> output_bits(CaseData& data, Direction direction, const Expectation& expectation);
// "dq at batch 0, row 1, ..." of the first element that differs, or empty.
std::string first_difference(CaseData& data, Direction direction, const Expectation& expectation,
                             const std::vector<std::byte>& before);

// Known answers of the case's line that the outputs miss; empty = all right.
std::string missed_answer(CaseData& data, Direction direction, const Expectation& expectation);

// All cases of tests/cases/*.txt; stops the program with a sentence where a line is wrong.
const std::vector<Case>& file_cases();

// Seed of random inputs: TILEWISE_TEST_SEED, else fresh for each run; printed once.
uint64_t run_seed();

// What a test of every kernel runs on.
struct Subject {
  const Case* source;
  DType dtype;

  std::string name() const { return source->name + "_" + name_of(dtype); }
};
inline void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.source->text; }

}  // namespace tilewise::testing_support
#endif  // TILEWISE_TESTS_SUPPORT_KERNEL_RUN_H_
