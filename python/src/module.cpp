// tilewise._core: the C border as Python sees it, behind the functions of the package tilewise.
#include "module.h"

NB_MODULE(_core, m) {
  m.doc() = "The library itself. Use the package tilewise, which checks and completes arguments.";
  tilewise_python::bind_problem(m);
  tilewise_python::bind_run(m);
  tilewise_python::bind_plan(m);
}
