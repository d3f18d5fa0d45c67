# Shared by the scripts of this folder; sourced, not run. Leaves the shell in the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '== %s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# Whether clang links a fuzzer: its runtime is a package of its own.
clang_fuzzes() {
  local program status=0
  have clang++ || return 1
  program=$(mktemp)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -x c++ -fsanitize=fuzzer,address - -o "$program" 2>/dev/null || status=1
  rm -f "$program"
  return $status
}

# One job for each free GB of memory (the cgroup's limit counts too), at least 1, at most one for each processor.
build_jobs() {
  local free_kb limit used jobs
  free_kb=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  if [ -r /sys/fs/cgroup/memory.max ] && read -r limit </sys/fs/cgroup/memory.max && [ "$limit" != max ]; then
    read -r used </sys/fs/cgroup/memory.current
    local left=$(((limit - used) / 1024))
    [ "$left" -lt "$free_kb" ] && free_kb=$left
  fi
  jobs=$((free_kb / 1048576))
  [ "$jobs" -gt "$(nproc)" ] && jobs=$(nproc)
  [ "$jobs" -lt 1 ] && jobs=1
  echo "$jobs"
}

# The Python package's wheel against the library of a build folder, into WORK/wheel: make_wheel PYTHON BUILD WORK [OPTIONS OF PIP]...
make_wheel() {
  local python=$1 build=$2 work=$3
  shift 3
  cmake --install "$build" --prefix "$work/prefix" || return 1
  if have ccache; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
  "$python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps -v . -w "$work/wheel" \
    --config-settings=build-dir="$work/build" --config-settings=cmake.source-dir=python \
    --config-settings=cmake.define.Tilewise_ROOT="$work/prefix" "$@"
}
