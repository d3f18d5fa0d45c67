# tilewise_room(<name> SOURCES a.cpp... [ALONE b.cpp...] [USES target...] [TESTS a_test.cpp...] [LABELS label...])
#
# Compiles a room of src/ once, as position-independent objects with hidden visibility, for both libraries.
# Its TESTS stand beside what they check and make one program, <name>_test.
# With TILEWISE_UNITY its SOURCES are compiled several at a time; those of ALONE never are: kernels, whose code must not
# depend on their neighbours, and what a compiler takes long for anyway.
function(tilewise_room name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;ALONE;USES;TESTS;LABELS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tilewise_room(${name}): unknown argument ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(arg_SOURCES)
    add_library(tilewise_${name} OBJECT ${arg_SOURCES} ${arg_ALONE})
    if(arg_ALONE)
      set_source_files_properties(${arg_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
    target_link_libraries(tilewise_${name} PRIVATE tilewise_flags ${arg_USES})
    target_include_directories(tilewise_${name} PRIVATE ${TILEWISE_ROOM_INCLUDES})
    set_target_properties(tilewise_${name} PROPERTIES
      CXX_EXTENSIONS OFF
      UNITY_BUILD ${TILEWISE_UNITY}
      UNITY_BUILD_BATCH_SIZE 16
      POSITION_INDEPENDENT_CODE ON
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON)
    set_property(GLOBAL APPEND PROPERTY TILEWISE_ROOMS tilewise_${name})
  endif()
  if(arg_TESTS AND TILEWISE_TESTS)
    tilewise_test(${name}_test SOURCES ${arg_TESTS} USES ${arg_USES} LABELS ${arg_LABELS})
  endif()
endfunction()

configure_file("${PROJECT_SOURCE_DIR}/cmake/version.h.in" "${PROJECT_BINARY_DIR}/include/tilewise/version.h" @ONLY)
set(TILEWISE_ROOM_INCLUDES
  "${PROJECT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
