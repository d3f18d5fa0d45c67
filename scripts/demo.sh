#!/usr/bin/env bash
# From a bare machine to the main job on real data: installs what is missing, builds, runs scripts/demo_run.sh.
. "$(dirname "$0")/common.sh"

scripts/setup.sh
if [ -e build/CMakeCache.txt ]; then
  scripts/build.sh
else
  scripts/build.sh release -DTILEWISE_TESTS=OFF
fi
exec scripts/demo_run.sh "$@"
