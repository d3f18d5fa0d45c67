// tilewise._core: the C border as Python sees it, behind the functions of the package tilewise.
#include "module.h"

NB_MODULE(_core, m) {
  // Frameworks keep operators, and with them problems, past the interpreter's end; nothing is printed about
  // it.
  nanobind::set_leak_warnings(false);
  m.doc() = "The library itself. Use the package tilewise, which checks and completes arguments.";
  tilewise_python::bind_problem(m);
  tilewise_python::bind_run(m);
  tilewise_python::bind_append(m);
  tilewise_python::bind_plan(m);
}
