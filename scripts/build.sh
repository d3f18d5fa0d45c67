#!/usr/bin/env bash
# Configures and builds: scripts/build.sh [PRESET] [--target NAME] [CMAKE ARGUMENT...]; the preset is release (folder build/)
# unless named, and everything is built unless a target is.
. "$(dirname "$0")/common.sh"

preset=release
case ${1-} in '' | -*) ;; *) preset=$1; shift ;; esac
target=()
if [ "${1-}" = --target ]; then
  target=(--target "${2?a name after --target}")
  shift 2
fi
case $preset in release) folder=build ;; *) folder=build-$preset ;; esac

if [ ! -e "$folder/CMakeCache.txt" ] && have ninja; then export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}; fi
jobs=$(build_jobs)
say "build: preset $preset, $jobs jobs"
SECONDS=0
cmake --preset "$preset" "$@" | grep -E '^-- Tilewise|[Ww]arning|[Ee]rror' || [ "${PIPESTATUS[0]}" = 0 ]
cmake --build "$folder" --parallel "$jobs" "${target[@]}"
say "build: $folder/ done in $SECONDS s"
