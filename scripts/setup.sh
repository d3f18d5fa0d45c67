#!/usr/bin/env bash
# Installs what is missing to build Tilewise, with apt-get; where nothing is missing it needs no rights and changes nothing.
#   scripts/setup.sh            compiler, CMake, the libraries, Python, and OpenBLAS as a rival for the benchmarks
#   scripts/setup.sh --tests    also what scripts/test.sh needs
#   scripts/setup.sh --cross    also the aarch64 cross compiler and qemu-user
#   scripts/setup.sh --cross-cuda   the same, and from PyPI NVIDIA's static runtime of CUDA 13.0 for aarch64 (2 MB, into build-cuda/)
#   scripts/setup.sh --fuzz     also clang with libFuzzer, where the system has it: without it setup succeeds too
. "$(dirname "$0")/common.sh"

missing=()
need() { # need PACKAGE PROBE...: the package is missing where the probe fails
  local package=$1
  shift
  "$@" || missing+=("$package")
}

header() { # in a folder that compilers search here
  local folder
  for folder in /usr/include /usr/local/include; do [ -e "$folder/$1" ] && return 0; done
  return 1
}
library() { compgen -G "/usr/lib/*/$1" >/dev/null || compgen -G "/usr/lib*/$1" >/dev/null; }
cmake_3_25() {
  local version
  have cmake && version=$(cmake --version | sed -n '1s/[^0-9]*//p') &&
    [ "$(printf '%s\n3.25\n' "$version" | sort -V | head -n1)" = 3.25 ]
}
python_module() { python3 -c "import $1" 2>/dev/null; }
python_headers() { python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; }
compilers() { have "${CXX:-c++}" && have "${CC:-cc}"; }

tests=0 cross=0 cross_cuda=0 fuzz=0
for option in "$@"; do
  case $option in
    --tests) tests=1 ;;
    --cross) cross=1 ;;
    --cross-cuda) cross=1 cross_cuda=1 ;;
    --fuzz) fuzz=1 ;;
    *) die "unknown option $option; accepted: --tests, --cross, --cross-cuda, --fuzz" ;;
  esac
done

probe() {
  missing=()
  need cmake cmake_3_25
  need ninja-build have ninja
  need g++ compilers
  need libhwy-dev header hwy/highway.h
  need libcli11-dev header CLI/CLI.hpp
  need nlohmann-json3-dev header nlohmann/json.hpp
  need python3 have python3
  need libopenblas0-pthread library libopenblas.so.0
  if [ $tests = 1 ]; then
    need libgtest-dev header gtest/gtest.h
    need libbenchmark-dev header benchmark/benchmark.h
    need pkg-config have pkg-config
    need binutils have nm
    need dpkg-dev have dpkg-shlibdeps
    need file have file
    need python3-venv python_module ensurepip
    need python3-dev python_headers
  fi
  if [ $cross = 1 ] && [ "$(uname -m)" != aarch64 ]; then
    need g++-aarch64-linux-gnu have aarch64-linux-gnu-g++
    need qemu-user have qemu-aarch64
    need googletest test -e /usr/src/googletest/CMakeLists.txt
    if [ $cross_cuda = 1 ]; then need python3-pip python_module pip; fi
  fi
}

# For the cross build's nvcc: of the same version, since nvcc's headers and the runtime belong together.
cross_cuda_runtime() {
  local folder=build-cuda/13.0-sbsa
  [ $cross_cuda = 1 ] && [ "$(uname -m)" != aarch64 ] && ! [ -e $folder/libcudart_static.a ] || return 0
  say "setup: pip gets nvidia-cuda-runtime 13.0.96 for aarch64"
  local work
  work=$(mktemp -d)
  echo "nvidia-cuda-runtime==13.0.96 --hash=sha256:ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55" >"$work/pinned.txt"
  python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --platform manylinux_2_17_aarch64 \
    --require-hashes -r "$work/pinned.txt" -d "$work" && python3 -m zipfile -e "$work"/*.whl "$work" ||
    { rm -rf "$work"; die "NVIDIA's runtime for aarch64 cannot be had from PyPI"; }
  mkdir -p $folder
  # The archive comes last: it says that the folder is whole.
  cp "$work"/*.dist-info/licenses/License.txt "$work"/nvidia/cu13/lib/libcudadevrt.a $folder
  cp "$work"/nvidia/cu13/lib/libcudart_static.a $folder
  rm -rf "$work"
}

# What is worth having only: its absence is said where it is used.
wanted() {
  optional=()
  if [ $fuzz = 1 ] && ! clang_fuzzes; then optional=(clang libclang-rt-dev); fi
}

probe
wanted
if [ ${#missing[@]} = 0 ] && [ ${#optional[@]} = 0 ]; then
  cross_cuda_runtime
  say "setup: nothing is missing"
  exit 0
fi
cannot() { # cannot WHY: an error where something needed is missing
  [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]}; $1"
  cross_cuda_runtime
  say "setup: left out: ${optional[*]}; $1"
  exit 0
}
have apt-get || cannot "these are Debian's package names; this system has no apt-get, so install them yourself"
if [ "$(id -u)" = 0 ]; then
  as_root=()
elif have sudo; then
  as_root=(sudo)
else
  cannot "run this as root or install sudo"
fi

say "setup: apt-get installs" "${missing[@]}" "${optional[@]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { "$@" >"$log" 2>&1 </dev/null; }
quietly "${apt[@]}" update || { tail -n 20 "$log" >&2; cannot "apt-get update failed"; }
install() { # install PACKAGE...
  [ $# = 0 ] || quietly "${apt[@]}" install --no-install-recommends "$@" || { tail -n 20 "$log" >&2; return 1; }
}
install "${missing[@]}" || die "apt-get could not install ${missing[*]}"
install "${optional[@]}" || say "setup: left out: ${optional[*]}; apt-get could not install them"

probe
[ ${#missing[@]} = 0 ] || die "still missing after the installation: ${missing[*]} (CMake must be 3.25 or later: Debian 12, Ubuntu 24.04)"
cross_cuda_runtime
