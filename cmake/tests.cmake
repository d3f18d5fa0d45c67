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

# tilewise_script_test(<name> COMMAND script argument... [LABELS label...] [TIMEOUT s])
#
# A script, run in the repository's root; $<TARGET_FILE:tilewise> gives it the command. Exit status 77 = skipped. If its
# last line is "N passed, N failed[, N skipped]", scripts/test.sh counts those instead of one. Not for a cross build.
function(tilewise_script_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "COMMAND;LABELS")
  if(CMAKE_CROSSCOMPILING)
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
