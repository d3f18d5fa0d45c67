# What is built upon. Nothing is downloaded: a missing one is one sentence with its Debian package.
find_package(Threads REQUIRED)

# Makes the interface target `name` for a library of headers only. The headers of the build machine serve a cross
# build too, through a folder of their own, so that the rest of /usr/include stays out of it.
function(tilewise_header_library name header package)
  find_path(TILEWISE_HEADERS_${name} ${header} NO_CMAKE_FIND_ROOT_PATH)
  mark_as_advanced(TILEWISE_HEADERS_${name})
  set(folder "${TILEWISE_HEADERS_${name}}")
  if(NOT folder)
    message(FATAL_ERROR "Tilewise needs the header <${header}>: install the Debian package ${package} "
      "(scripts/setup.sh does it).")
  endif()
  if(CMAKE_CROSSCOMPILING)
    string(REGEX MATCH "^[^/]+" top "${header}")
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/headers")
    file(CREATE_LINK "${folder}/${top}" "${PROJECT_BINARY_DIR}/headers/${top}" SYMBOLIC)
    set(folder "${PROJECT_BINARY_DIR}/headers")
  endif()
  add_library(${name} INTERFACE)
  target_include_directories(${name} SYSTEM INTERFACE "${folder}")
endfunction()

# Highway 1.0.3 or later: headers only. Its debug assertions would need libhwy, so they stay off.
tilewise_header_library(tilewise_hwy hwy/highway.h libhwy-dev)
target_compile_definitions(tilewise_hwy INTERFACE HWY_IS_DEBUG_BUILD=0)

if(TILEWISE_CLI)
  tilewise_header_library(tilewise_cli11 CLI/CLI.hpp libcli11-dev)
  tilewise_header_library(tilewise_json nlohmann/json.hpp nlohmann-json3-dev)
endif()

if(TILEWISE_TESTS)
  if(NOT CMAKE_CROSSCOMPILING)
    find_package(GTest QUIET)
  endif()
  if(NOT TARGET GTest::gtest_main)
    if(NOT EXISTS /usr/src/googletest/CMakeLists.txt)
      message(FATAL_ERROR "Tilewise's tests need GoogleTest: install the Debian package libgtest-dev "
        "(scripts/setup.sh --tests does it), or configure with -DTILEWISE_TESTS=OFF.")
    endif()
    set(INSTALL_GTEST OFF CACHE INTERNAL "")
    set(BUILD_GMOCK OFF CACHE INTERNAL "")
    add_subdirectory(/usr/src/googletest "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL SYSTEM)
  endif()
endif()
