#!/usr/bin/env bash
# install_test.sh SOURCE BUILD STEP: one check of the installed tree or the packages. The step `tree` installs first;
# programs are tests/install/version.c and every example.
set -euo pipefail
source=$1 build=$2 step=$3
work=$build/install-test
prefix=$work/prefix
lib=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:[^=]*=//p' "$build/CMakeCache.txt")
generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$build/CMakeCache.txt")
cxx=$(sed -n 's/^CMAKE_CXX_COMPILER:[^=]*=//p' "$build/CMakeCache.txt")
cc=$(sed -n 's/^CMAKE_C_COMPILER:[^=]*=//p' "$build/CMakeCache.txt")
ccache=$(sed -n 's/^TILEWISE_CCACHE:[^=]*=\(\/.*\)/\1/p' "$build/CMakeCache.txt")
shopt -s nullglob
c_programs=("$source"/tests/install/*.c "$source"/examples/c/*.c)
cpp_programs=("$source"/examples/cpp/*.cpp)

fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
join() { local IFS=';'; echo "$*"; }

consumer() { # consumer NAME LANGUAGES PROGRAMS CMAKE-ARGUMENT...
  local folder=$work/$1 languages=$2 programs=$3
  shift 3
  [ -n "$programs" ] || return 0
  rm -rf "$folder"
  cmake -S "$source/tests/install/consumer" -B "$folder" -G "$generator" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DLANGUAGES="$languages" -DPROGRAMS="$programs" \
    --no-warn-unused-cli "$@"
  cmake --build "$folder" --target run
}

find_package() { # find_package SHARED(ON|OFF) PREFIX
  local where=(-DCMAKE_PREFIX_PATH="$2" -DBUILD_SHARED_LIBS="$1")
  consumer "find-c-$1" C "$(join "${c_programs[@]}")" "${where[@]}"
  consumer "find-cpp-$1" CXX "$(join "${cpp_programs[@]}")" "${where[@]}"
}

pkg_config() { # pkg_config PREFIX PKG-CONFIG-OPTION... -- COMPILER-OPTION...
  local pc=$1/$lib/pkgconfig options=() flags program
  [ -e "$pc" ] || pc=$1/lib/pkgconfig
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  read -ra flags < <(PKG_CONFIG_PATH=$pc pkg-config "${options[@]}" --cflags --libs tilewise)
  echo "pkg-config: ${flags[*]}"
  for program in "${c_programs[@]}" "${cpp_programs[@]}"; do
    case $program in
      *.c) "$cc" -std=c99 -pedantic-errors -Wall -Wextra -Werror "$program" "$@" "${flags[@]}" -o "$work/program" ;;
      *) "$cxx" -std=c++20 -Wall -Wextra -Wpedantic -Werror "$program" "$@" "${flags[@]}" -o "$work/program" ;;
    esac
    LD_LIBRARY_PATH=$(dirname "$pc") "$work/program"
  done
}

case $step in
  tree) # installed in one place, then moved: nothing in it may know where it was
    rm -rf "$work"
    mkdir -p "$work"
    cmake --install "$build" --prefix "$work/first" >/dev/null
    mv "$work/first" "$prefix"
    ! grep -rlE "$work/first|$source|$build" "$prefix/include" "$prefix/$lib/cmake" "$prefix/$lib/pkgconfig" ||
      fail "these installed files name a folder of the build"
    ;;
  find_package_shared) find_package ON "$prefix" ;;
  find_package_static) find_package OFF "$prefix" ;;
  pkg_config_shared) pkg_config "$prefix" -- ;;
  pkg_config_static) pkg_config "$prefix" --static -- -static ;;
  add_subdirectory) # without the CUDA units: the build folder has compiled them by the same rules, and they take minutes
    consumer sub "C;CXX" "$(join "${c_programs[@]}" "${cpp_programs[@]}")" -DTILEWISE_SUBDIRECTORY="$source" \
      -DCMAKE_CXX_COMPILER_LAUNCHER="$ccache" -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DTILEWISE_CUDA=OFF
    ;;
  exports) # tilewise_* and nothing else; the soname carries the binary interface
    names=$(nm -D --defined-only "$prefix/$lib/libtilewise.so" | awk '{print $NF}')
    [ -n "$names" ] || fail "the shared library exports nothing"
    if grep -v '^tilewise_' <<<"$names"; then fail "the shared library exports the names above"; fi
    # c.h is the contract: each function it declares is exported, and each name exported is declared.
    declared=$(sed -n '/^TILEWISE_API/,/;/p' "$prefix"/include/tilewise/*.h | tr '\n' ' ' |
      grep -oE '\btilewise_[a-z0-9_]+\(' | tr -d '(' | sort -u)
    diff <(echo "$declared") <(sort -u <<<"$names") || fail "declared (<) and exported (>) names differ"
    ;;
  packages)
    (cd "$build" && rm -rf packages && cpack)
    root=$work/packages
    rm -rf "$root"
    mkdir -p "$root"
    for package in "$build"/packages/*.deb; do
      dpkg-deb --info "$package" | sed -n 's/^ \(Package\|Depends\|Architecture\)/\1/p'
      dpkg-deb -x "$package" "$root"
    done
    runtime=("$build"/packages/libtilewise[0-9]*.deb)
    dpkg-deb --field "${runtime[0]}" Depends | grep -q libc6 || fail "the runtime package does not depend on libc6"
    find_package ON "$root/usr"
    pkg_config "$root/usr" --
    mkdir -p "$work/archive"
    tar -xzf "$build"/packages/tilewise-*.tar.gz -C "$work/archive" --strip-components=1
    "$work/archive/bin/tilewise" --version
    find_package OFF "$work/archive"
    ;;
  *) fail "unknown step $step" ;;
esac
