# What can be chosen at configure time, and the flags every unit of ours gets. docs/building.md lists the options.
option(TILEWISE_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TILEWISE_BENCH "Build the benchmark programs" ${PROJECT_IS_TOP_LEVEL})
option(TILEWISE_UNITY "Compile the small units of a room together: sooner done from nothing, later after an edit"
  ${PROJECT_IS_TOP_LEVEL})
option(TILEWISE_FUZZ "Build the fuzzers (clang alone)" OFF)
option(TILEWISE_CLI "Build the command tilewise" ${PROJECT_IS_TOP_LEVEL})
option(TILEWISE_PYTHON "Build the Python module (pip install . does it)" OFF)
option(TILEWISE_INSTALL "Make install rules" ${PROJECT_IS_TOP_LEVEL})
# Warnings are errors with the compilers it is known to be free of them with; a newer one may have found new warnings.
set(werror OFF)
if(PROJECT_IS_TOP_LEVEL AND (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15
    OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 20))
  set(werror ON)
endif()
option(TILEWISE_WERROR "Treat warnings as errors" ${werror})
set(TILEWISE_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (where they can be built), ON (or fail), OFF")
set(TILEWISE_SANITIZE "" CACHE STRING "Sanitizers for every unit of ours, as -fsanitize= takes them")
set_property(CACHE TILEWISE_CUDA PROPERTY STRINGS AUTO ON OFF)

if(NOT TILEWISE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TILEWISE_CUDA is \"${TILEWISE_CUDA}\"; accepted: AUTO, ON, OFF.")
endif()
include(GNUInstallDirs)

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
  endif()
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  find_program(TILEWISE_CCACHE ccache)
  mark_as_advanced(TILEWISE_CCACHE)
  if(TILEWISE_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${TILEWISE_CCACHE}")
  endif()
endif()

# Everything compiled here links this; nothing of it reaches those who use the library.
add_library(tilewise_flags INTERFACE)
target_compile_features(tilewise_flags INTERFACE cxx_std_20)
set(host_language $<COMPILE_LANGUAGE:C,CXX>)
# Registers are counted out for nvcc 13. The ptxas of 12.4 spills some bytes in kernels for 8.0 (docs/platforms.md): no error there.
set(counted_out $<AND:$<COMPILE_LANGUAGE:CUDA>,$<VERSION_GREATER_EQUAL:$<CUDA_COMPILER_VERSION>,13>>)
target_compile_options(tilewise_flags INTERFACE
  $<${host_language}:-Wall> $<${host_language}:-Wextra> $<${host_language}:-Wpedantic> $<${host_language}:-Wundef>
  $<$<C_COMPILER_ID:GNU>:$<${host_language}:-Wshadow=local>> $<$<NOT:$<C_COMPILER_ID:GNU>>:$<${host_language}:-Wshadow>>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  # a*b+c is two roundings unless the source says fma: the same arithmetic on every compiler.
  $<${host_language}:-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr> $<${counted_out}:-Xptxas=--warn-on-spills>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(tilewise_flags INTERFACE
    $<${host_language}:-Wno-restrict>) # sees overlaps inside std::string: GCC bug 105651
endif()
if(TILEWISE_WERROR)
  target_compile_options(tilewise_flags INTERFACE
    $<${host_language}:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>
    $<${counted_out}:-Xptxas=--warning-as-error>)
endif()
# Code that runs once, the command's and the tests': optimised less, which is half of its build. What is timed keeps its
# level, and so does the library.
set(TILEWISE_QUICK $<$<CONFIG:Release>:-O1>)
if(TILEWISE_SANITIZE)
  set(TILEWISE_QUICK -O1)
  # A report names functions and lines: debug information of that much.
  set(sanitize -fsanitize=${TILEWISE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  target_compile_options(tilewise_flags INTERFACE ${sanitize})
  target_link_options(tilewise_flags INTERFACE ${sanitize})
endif()
