// tilewise_context: everything that is not data and outlives a call.
#ifndef TILEWISE_API_CONTEXT_H_
#define TILEWISE_API_CONTEXT_H_

#include <memory>
#include <optional>
#include <string>

#include "api/workspace_pool.h"
#include "cpu/threads.h"
#include "plan/plan_cache.h"
#include "plan/planner.h"

struct tilewise_context {
  tilewise_context_options options{};  // its strings are owned below
  std::unique_ptr<tilewise::Executor> executor;
  tilewise::ThreadPool* pool = nullptr;  // the executor, where it is ours
  tilewise::Registry registry = tilewise::Registry::builtin();
  tilewise_device_info device{};
  std::optional<tilewise::Tuning> tuning;
  std::string forced;
  mutable tilewise::PlanCache plans;
  std::unique_ptr<tilewise::WorkspacePool> workspaces;

  tilewise::PlanRequest request(const tilewise_problem& problem, const tilewise_limits* limits) const;
  void log(const char* line) const {
    if (options.log) options.log(options.log_user, line);
  }
};

#endif  // TILEWISE_API_CONTEXT_H_
