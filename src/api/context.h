// tilewise_context: everything that is not data and outlives a call.
#ifndef TILEWISE_API_CONTEXT_H_
#define TILEWISE_API_CONTEXT_H_

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "api/stream_workspaces.h"
#include "api/workspace_pool.h"
#include "cpu/threads.h"
#include "plan/plan_cache.h"
#include "plan/planner.h"

struct tilewise_context {
  tilewise_context_options options{};  // its strings are owned below
  std::unique_ptr<tilewise::Executor> executor;
  tilewise::ThreadPool* pool = nullptr;  // the executor, where it is ours
  tilewise::Registry registry = tilewise::Registry::builtin();
  tilewise_device_info cpu{};
  tilewise_device_info device{};  // of tilewise_plan_for_context: the CPU, or the CUDA device of the options
  std::optional<tilewise::Tuning> tuning;
  std::string forced;
  mutable tilewise::PlanCache plans;
  std::unique_ptr<tilewise::WorkspacePool> workspaces;
  mutable tilewise::StreamWorkspaces stream_workspaces;

  tilewise::PlanRequest request(const tilewise_problem& problem, const tilewise_limits* limits) const {
    return request(problem, limits, device);
  }
  tilewise::PlanRequest request(const tilewise_problem& problem, const tilewise_limits* limits,
                                const tilewise_device_info& on) const;
  // A CUDA device is asked once and remembered, its free memory too. `info` lives as long as the context.
  tilewise::Status device_of(int32_t kind, int32_t index, const tilewise_device_info** info) const;
  void log(const char* line) const {
    if (options.log) options.log(options.log_user, line);
  }

 private:
  mutable std::mutex devices_mutex_;
  mutable std::map<int32_t, tilewise_device_info> cuda_devices_;
};

#endif  // TILEWISE_API_CONTEXT_H_
