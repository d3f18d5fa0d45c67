# tilewise_test(<name> SOURCES a_test.cpp... [USES target...] [LABELS fast|slow|threads...] [SHARDS n] [TIMEOUT s])
#
# One GoogleTest program over the static library, so tests see every room. LABELS default to fast; `threads` adds the
# program to the ThreadSanitizer tier. With SHARDS its cases run as n processes that CTest may run side by side.
include(CTest)
if(TILEWISE_TESTS)
  enable_testing()
endif()

function(tilewise_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SHARDS;TIMEOUT" "SOURCES;USES;LABELS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tilewise_test(${name}): unknown argument ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  if(NOT arg_SHARDS)
    set(arg_SHARDS 1)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${name} PRIVATE ${TILEWISE_ROOM_INCLUDES} "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${name} PRIVATE TILEWISE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    target_compile_definitions(${name} PRIVATE TILEWISE_EMULATED)
  endif()
  if(threads IN_LIST arg_LABELS) # the target threads_tests: all that the ThreadSanitizer tier runs
    if(NOT TARGET threads_tests)
      add_custom_target(threads_tests)
    endif()
    add_dependencies(threads_tests ${name})
  endif()
  target_compile_options(${name} PRIVATE ${TILEWISE_QUICK})
  target_link_libraries(${name} PRIVATE ${arg_USES} tilewise_static tilewise_flags GTest::gtest_main)
  math(EXPR last "${arg_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(test ${name})
    if(arg_SHARDS GREATER 1)
      string(APPEND test "_${shard}")
    endif()
    add_test(NAME ${test} COMMAND ${name})
    set_tests_properties(${test} PROPERTIES
      LABELS "${arg_LABELS}"
      TIMEOUT ${arg_TIMEOUT}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${shard};\
GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/results/gtest/${test}.xml")
  endforeach()
endfunction()

# tilewise_script_test(<name> COMMAND script argument... [EMULATED] [LABELS label...] [TIMEOUT s])
#
# A script, run in the repository's root. Exit status 77 = skipped. If its last line is "N passed, N failed[, N skipped]",
# scripts/test.sh counts those instead of one. A cross build leaves it out, unless it is EMULATED: it runs a program by
# what tilewise_runnable gave, and there is an emulator.
function(tilewise_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "EMULATED" "TIMEOUT" "COMMAND;LABELS")
  if(CMAKE_CROSSCOMPILING AND NOT (arg_EMULATED AND CMAKE_CROSSCOMPILING_EMULATOR))
    return()
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)
  endif()
  add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()

# tilewise_runnable(<variable> <target>): a path that runs the target's program on this machine; in a cross build that of
# a script which calls the emulator.
function(tilewise_runnable variable target)
  set(path "$<TARGET_FILE:${target}>")
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
    set(path "${PROJECT_BINARY_DIR}/emulated/${target}")
    file(GENERATE OUTPUT "${path}"
      CONTENT "#!/bin/sh\nexec ${emulator} \"$<TARGET_FILE:${target}>\" \"$@\"\n"
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  endif()
  set(${variable} "${path}" PARENT_SCOPE)
endfunction()
