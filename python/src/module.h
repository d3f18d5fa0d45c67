// The parts of the module, one function each.
#ifndef TILEWISE_PYTHON_MODULE_H_
#define TILEWISE_PYTHON_MODULE_H_

#include <nanobind/nanobind.h>

namespace tilewise_python {

void bind_problem(nanobind::module_& m);
void bind_run(nanobind::module_& m);
void bind_append(nanobind::module_& m);
void bind_plan(nanobind::module_& m);

}  // namespace tilewise_python
#endif  // TILEWISE_PYTHON_MODULE_H_
