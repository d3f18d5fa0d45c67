// Device: where --device, --kernel, --threads and --max-workspace lead: a context, and plans within those
// limits.
#ifndef TILEWISE_CLI_DEVICE_H_
#define TILEWISE_CLI_DEVICE_H_

#include <string>

#include "tilewise/attention.h"

namespace tilewise::cli {

struct DeviceArguments {
  std::string device = "auto", kernel, threads, max_workspace;  // as typed; "" = not given
};

// What --device names. `auto` takes the first CUDA device where one works, else the CPU.
struct DeviceName {
  tilewise_device_kind kind = TILEWISE_CPU;
  int32_t index = 0;
  bool reference = false;

  std::string to_string() const;  // "cpu", "reference", "cuda:0"
};
Expected<DeviceName> parse_device(const std::string& text);

class Device {
 public:
  // TILEWISE_* variables count where no option says otherwise. Lengths in data are always checked.
  static Expected<Device> choose(const DeviceArguments& arguments);

  // Within the options; `kernel` overrides --kernel.
  Expected<Plan> plan(const Problem& problem, const char* kernel = nullptr) const;
  std::string explain(const Problem& problem) const;
  const char* chosen_by(const Plan& plan) const;  // "forced", "tuning" or "cost model"

  const Context& context() const { return context_; }
  const DeviceInfo& info() const { return info_; }
  int threads() const { return threads_; }
  bool is_cuda() const { return info_.kind == TILEWISE_CUDA; }
  // "cpu", "cuda:0"
  std::string name() const {
    return DeviceName{static_cast<tilewise_device_kind>(info_.kind), info_.index}.to_string();
  }
  std::string text() const;  // "cpu: Intel(R) Xeon(R), avx512, 2 threads"

 private:
  Device(Context context, const DeviceInfo& info) : context_(std::move(context)), info_(info) {}
  Limits limits(const Problem& problem, const char* kernel, std::string* storage) const;

  Context context_;
  DeviceInfo info_;
  std::string kernel_;
  bool reference_ = false;
  int threads_ = 1;
  int64_t max_workspace_ = -1;
};

// "avx2" for the widest of tilewise_isa bits.
const char* widest_isa(uint64_t isa);

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_DEVICE_H_
