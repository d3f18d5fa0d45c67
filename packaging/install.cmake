# `cmake --install`: runtime (shared library), dev (headers, archive, CMake and pkg-config files), tools (the command).
include(CMakePackageConfigHelpers)
set(config_folder "${CMAKE_INSTALL_LIBDIR}/cmake/Tilewise")

install(TARGETS tilewise_static tilewise_shared EXPORT TilewiseTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/tilewise" "${PROJECT_BINARY_DIR}/include/tilewise"
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev FILES_MATCHING PATTERN "*.h")
install(EXPORT TilewiseTargets NAMESPACE Tilewise:: DESTINATION ${config_folder} COMPONENT dev)

# What a program in C must add to link the archive, which carries C++.
set(TILEWISE_CXX_RUNTIME stdc++ m)
list(TRANSFORM TILEWISE_CXX_RUNTIME PREPEND -l OUTPUT_VARIABLE private)
list(JOIN private " " TILEWISE_PC_PRIVATE)
string(APPEND TILEWISE_PC_PRIVATE " -pthread")
if(TILEWISE_CUDA_FOUND)
  string(APPEND TILEWISE_PC_PRIVATE " -ldl -lrt")
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/packaging/TilewiseConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/TilewiseConfig.cmake" INSTALL_DESTINATION ${config_folder})
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
else()
  set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/TilewiseConfigVersion.cmake" COMPATIBILITY ${compatibility})
install(FILES "${PROJECT_BINARY_DIR}/TilewiseConfig.cmake" "${PROJECT_BINARY_DIR}/TilewiseConfigVersion.cmake"
  DESTINATION ${config_folder} COMPONENT dev)

# Paths relative to the .pc file, so that an installed tree may be moved.
file(RELATIVE_PATH prefix_from_pc "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
configure_file("${PROJECT_SOURCE_DIR}/packaging/tilewise.pc.in" "${PROJECT_BINARY_DIR}/tilewise.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/tilewise.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT dev)

if(TILEWISE_CLI)
  install(TARGETS tilewise RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()
