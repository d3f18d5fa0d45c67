// Problem: what tensors cannot say of a call.
#include <string>

#include <nanobind/stl/string.h>

#include "module.h"
#include "tilewise/problem.h"

namespace nb = nanobind;

void tilewise_python::bind_problem(nb::module_& m) {
  nb::class_<tilewise_problem>(m, "Problem",
                               "Options of a call; names and meaning as in tilewise_problem of c.h.")
      .def("__init__", [](tilewise_problem* p) { tilewise_problem_init(new (p) tilewise_problem); })
      .def_rw("direction", &tilewise_problem::direction)
      .def_rw("seqlen_q", &tilewise_problem::seqlen_q)
      .def_rw("seqlen_kv", &tilewise_problem::seqlen_kv)
      .def_rw("scale_rows", &tilewise_problem::scale_rows)
      .def_rw("causal", &tilewise_problem::causal)
      .def_rw("window_left", &tilewise_problem::window_left)
      .def_rw("window_right", &tilewise_problem::window_right)
      .def_rw("position", &tilewise_problem::position)
      .def_rw("softmax_scale", &tilewise_problem::softmax_scale)
      .def_rw("softcap", &tilewise_problem::softcap)
      .def_rw("dropout_p", &tilewise_problem::dropout_p)
      .def_rw("accumulate", &tilewise_problem::accumulate)
      .def_rw("deterministic", &tilewise_problem::deterministic)
      .def_rw("batch_invariant", &tilewise_problem::batch_invariant)
      .def("__repr__", [](const tilewise_problem& p) { return tilewise::Problem(p).to_string(); });
  m.attr("FORWARD") = static_cast<int>(TILEWISE_FORWARD);
  m.attr("BACKWARD") = static_cast<int>(TILEWISE_BACKWARD);
  m.attr("BOTTOM_RIGHT") = static_cast<int>(TILEWISE_BOTTOM_RIGHT);
  m.attr("TOP_LEFT") = static_cast<int>(TILEWISE_TOP_LEFT);
  m.attr("GIVEN") = static_cast<int>(TILEWISE_GIVEN);
}
