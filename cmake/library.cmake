# The rooms' objects, archived twice: Tilewise::static and Tilewise::shared; Tilewise::tilewise is the one that
# BUILD_SHARED_LIBS asks for.
get_property(rooms GLOBAL PROPERTY TILEWISE_ROOMS)
set(objects "")
foreach(room IN LISTS rooms)
  list(APPEND objects $<TARGET_OBJECTS:${room}>)
endforeach()

# The CUDA room and the static runtime become one object in which the runtime's names are local: the archive then needs
# no toolkit where it is used, and gets on with a program that brings a runtime of its own.
if(TILEWISE_CUDA_FOUND)
  set(cuda_object "${PROJECT_BINARY_DIR}/tilewise_cuda.o")
  set(cudart_object "${PROJECT_BINARY_DIR}/cudart.o")
  add_custom_command(OUTPUT "${cuda_object}"
    # Its section groups are dissolved: of two runtimes a linker would keep one's, whose names are local by then.
    COMMAND ${CMAKE_LINKER} -r --force-group-allocation -o "${cudart_object}"
      --whole-archive "${CUDA_cudart_static_LIBRARY}" --no-whole-archive
    COMMAND ${CMAKE_LINKER} -r -o "${cuda_object}" $<TARGET_OBJECTS:tilewise_cuda> "${cudart_object}"
    COMMAND ${CMAKE_OBJCOPY} --wildcard
      --localize-symbol=cuda* --localize-symbol=__cuda* --localize-symbol=libcudart_static_* "${cuda_object}"
    DEPENDS tilewise_cuda $<TARGET_OBJECTS:tilewise_cuda>
    COMMAND_EXPAND_LISTS VERBATIM)
  # Both libraries take the object: made once before either, not by two makes at the same time.
  add_custom_target(tilewise_cuda_object DEPENDS "${cuda_object}")
  list(REMOVE_ITEM objects $<TARGET_OBJECTS:tilewise_cuda>)
  list(APPEND objects "${cuda_object}")
endif()

# Until 1.0 a minor version may change the binary interface, so it is part of the soname.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(TILEWISE_SOVERSION "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
else()
  set(TILEWISE_SOVERSION "${PROJECT_VERSION_MAJOR}")
endif()

foreach(kind IN ITEMS static shared)
  string(TOUPPER ${kind} type)
  add_library(tilewise_${kind} ${type} ${objects})
  add_library(Tilewise::${kind} ALIAS tilewise_${kind})
  target_compile_features(tilewise_${kind} PUBLIC cxx_std_20)
  target_include_directories(tilewise_${kind} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(tilewise_${kind} PRIVATE Threads::Threads)
  if(TILEWISE_CUDA_FOUND)
    add_dependencies(tilewise_${kind} tilewise_cuda_object)
    target_link_libraries(tilewise_${kind} PRIVATE ${CMAKE_DL_LIBS} rt) # of the CUDA runtime, where libc is old
  endif()
  set_target_properties(tilewise_${kind} PROPERTIES
    OUTPUT_NAME tilewise EXPORT_NAME ${kind} LINKER_LANGUAGE CXX)
endforeach()

# Only tilewise_* leaves the shared library: hidden visibility alone lets templates of the C++ library out.
set(exports "${PROJECT_SOURCE_DIR}/cmake/exports.map")
target_link_options(tilewise_shared PRIVATE "LINKER:--version-script=${exports}")
if(TILEWISE_SANITIZE)
  target_link_options(tilewise_shared PRIVATE -fsanitize=${TILEWISE_SANITIZE})
else()
  target_link_options(tilewise_shared PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(tilewise_shared PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${TILEWISE_SOVERSION} LINK_DEPENDS "${exports}")

if(BUILD_SHARED_LIBS)
  add_library(Tilewise::tilewise ALIAS tilewise_shared)
else()
  add_library(Tilewise::tilewise ALIAS tilewise_static)
endif()
