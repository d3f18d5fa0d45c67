// Plans and their explanation, devices, versions: what does not compute.
#include <string>

#include <nanobind/stl/string.h>

#include "context.h"
#include "module.h"
#include "tilewise/plan.h"

namespace tilewise_python {
namespace {

tilewise_problem problem_of(const tilewise_problem& options, const Call& call) {
  tilewise_problem problem;
  tilewise_error error;
  raise_if_refused(tilewise_problem_from_tensors(&options, &call.tensors(), &problem, &error), error);
  return problem;
}

tilewise::DeviceInfo device_of(int32_t kind, int32_t index) {
  tilewise::DeviceInfo device;
  tilewise_error error;
  raise_if_refused(tilewise_device_query(kind, index, &device, &error), error);
  return device;
}

tilewise::Limits limits_of(int64_t max_workspace_bytes, int32_t threads, const std::string& kernel) {
  tilewise::Limits limits;
  limits.max_workspace_bytes = max_workspace_bytes;
  limits.threads = threads;
  limits.kernel = kernel.empty() ? nullptr : kernel.c_str();
  return limits;
}

tilewise_plan plan(const tilewise_problem& options, const nb::dict& arrays, const Setting& setting,
                   int64_t max_workspace_bytes, const std::string& kernel) {
  const Call call(arrays, setting);
  const tilewise_problem problem = problem_of(options, call);
  const tilewise_tensor& q = call.tensors().q;
  const tilewise::Limits limits = limits_of(max_workspace_bytes, 0, kernel);
  tilewise_plan made;
  tilewise_error error;
  raise_if_refused(tilewise_plan_for_context(context_for(setting, q.device_kind, q.device_index), &problem,
                                             &limits, &made, &error),
                   error);
  return made;
}

std::string explain(const tilewise_problem& options, const nb::dict& arrays, const Setting& setting,
                    int64_t max_workspace_bytes, const std::string& kernel) {
  const Call call(arrays, setting);
  const tilewise_problem problem = problem_of(options, call);
  const tilewise_tensor& q = call.tensors().q;
  const int32_t threads = tilewise_context_threads(context_for(setting));
  return tilewise::explain(problem, device_of(q.device_kind, q.device_index),
                           limits_of(max_workspace_bytes, threads, kernel));
}

nb::dict device(int32_t kind, int32_t index) {
  const tilewise::DeviceInfo d = device_of(kind, index);
  nb::dict result;
  result["name"] = d.name;
  result["cores"] = d.cores;
  result["isa"] = d.isa;
  result["memory_bytes"] = d.memory_bytes;
  result["core_gflops"] = d.core_gflops;
  result["bf16_dots"] = d.bf16_dots;
  result["memory_gbps"] = d.memory_gbps;
  return result;
}

void wait(int index) {
  tilewise_error error;
  tilewise_code code;
  {
    const nb::gil_scoped_release release;
    code = tilewise_device_wait(TILEWISE_CUDA, index, &error);
  }
  raise_if_refused(code, error);
}

std::string text_of(const tilewise_plan& p) {
  tilewise::Plan plan;
  static_cast<tilewise_plan&>(plan) = p;
  return plan.to_string();
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<tilewise_plan>(m, "Plan", "Which kernel runs a call, with which tiles, in how much scratch.")
      .def_prop_ro(
          "kernel", [](const tilewise_plan& p) { return std::string(p.kernel); }, "Its name in the table.")
      .def_ro("tile_m", &tilewise_plan::tile_m, "Rows of q a tile.")
      .def_ro("tile_n", &tilewise_plan::tile_n, "Rows of k and v a tile.")
      .def_ro("num_splits", &tilewise_plan::num_splits, "Key chunks that a head is split into.")
      .def_ro("threads", &tilewise_plan::threads, "Workers that the workspace has room for.")
      .def_ro("workspace_bytes", &tilewise_plan::workspace_bytes, "Scratch of a call.")
      .def_ro("predicted_ms", &tilewise_plan::predicted_ms, "By the cost model or the tuning file.")
      .def_ro("predicted_bytes", &tilewise_plan::predicted_bytes, "Moved to and from memory.")
      .def_prop_ro(
          "from_tuning", [](const tilewise_plan& p) { return p.from_tuning != 0; },
          "Whether a measured line chose the kernel.")
      .def("__eq__",
           [](const tilewise_plan& a, const tilewise_plan& b) { return tilewise_plan_equal(&a, &b) != 0; })
      .def("__repr__", &text_of);
  m.def(
      "plan",
      [](const tilewise_problem& options, const nb::dict& arrays, bool bhsd, bool cuda, int32_t threads,
         int64_t max_workspace_bytes, const std::string& kernel) {
        return plan(options, arrays, {bhsd, cuda, 0, threads}, max_workspace_bytes, kernel);
      },
      "The plan that attention() would use.");
  m.def(
      "explain",
      [](const tilewise_problem& options, const nb::dict& arrays, bool bhsd, bool cuda, int32_t threads,
         int64_t max_workspace_bytes, const std::string& kernel) {
        return explain(options, arrays, {bhsd, cuda, 0, threads}, max_workspace_bytes, kernel);
      },
      "One line a kernel.");
  m.def("device", &device, "What planning knows of a device: kind 0 = CPU, 1 = CUDA.");
  m.def("wait", &wait, "Until a CUDA device is idle; raises what failed there.");
  m.def(
      "threads",
      [](int32_t threads) {
        return tilewise_context_threads(context_for({false, false, 0, threads}));
      },
      "Of calls that ask for so many; 0 = the default.");
  m.def("version", &tilewise_version);
}

}  // namespace tilewise_python
