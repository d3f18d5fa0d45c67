#!/usr/bin/env bash
# Installs what is missing, builds, and tests: scripts/test.sh [--all | TIER...]
#   fast      every quick test of the release build
#   python    the wheel, built into a fresh virtual environment, and its tests
#   slow      the long ones of the release build
#   install   the installed tree, the packages, and programs built against them
#   sanitize  ASan and UBSan over the fast tests, TSan over the threaded ones, and 20 s of the fuzzer where clang has libFuzzer
#   aarch64   cross build, the fast tests and those of the command under qemu-user as a Cortex-A72 and as `max`
# The default is every test of the release build, fast to install; --all, --ci and CI=true mean all of them. The last line is
# the sum: N passed, N failed, N skipped.
. "$(dirname "$0")/common.sh"

all=(fast python slow install sanitize aarch64)
tiers=()
for argument in "$@"; do
  case $argument in
    --all | --ci) tiers=("${all[@]}") ;;
    fast | python | slow | install | sanitize | aarch64) tiers+=("$argument") ;;
    *) die "unknown argument $argument; accepted: --all, --ci, ${all[*]}" ;;
  esac
done
if [ ${#tiers[@]} = 0 ]; then
  tiers=(fast python slow install)
  [ "${CI-}" = true ] && tiers=("${all[@]}")
fi

passed=0 failed=0 skipped=0
summary=()
count() { # count NAME PASSED FAILED SKIPPED SECONDS
  passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
  summary+=("$(printf '%-22s %6d passed %4d failed %4d skipped %5d s' "$1" "$2" "$3" "$4" "$5")")
}

build() { # build PRESET [--target NAME]: a build that fails counts as one failed test
  local start=$SECONDS
  say "$1: build"
  scripts/build.sh "$@" -DTILEWISE_TESTS=ON || { count "build $1" 0 1 0 $((SECONDS - start)); return 1; }
}

check() { # check NAME FOLDER CTEST-ARGUMENT...
  local name=$1 folder=$2 start=$SECONDS counts status=0
  shift 2
  say "$name: test"
  rm -rf "$folder/results"
  mkdir -p "$folder/results/gtest"
  "${runner[@]}" ctest --test-dir "$folder" --parallel "$(build_jobs)" --output-on-failure --test-output-size-passed 1000000 \
    --output-junit "$PWD/$folder/results/ctest.xml" "$@" || status=$?
  counts=$(python3 scripts/sum_results.py "$folder/results") || counts="0 1 0"
  read -r -a counts <<<"$counts"
  if [ "$status" != 0 ] && [ "${counts[1]}" = 0 ]; then counts[1]=1; fi
  count "$name" "${counts[@]}" $((SECONDS - start))
}

tier_fast() { build release && check fast build -L fast --no-tests=error; }
tier_python() {
  build release || return
  local start=$SECONDS counts=
  say "python: wheel and test"
  mkdir -p build/results
  scripts/test_python.sh build 2>&1 | tee build/results/python.log || true
  counts=$(tail -n 1 build/results/python.log)
  if [[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
    count python "${BASH_REMATCH[@]:1:3}" $((SECONDS - start))
  else
    count python 0 1 0 $((SECONDS - start))
  fi
}
tier_slow() { build release && check slow build -L slow; }
tier_install() { build release && check install build -L install --no-tests=error; }
tier_sanitize() {
  build asan-ubsan && check asan+ubsan build-asan-ubsan -L fast --no-tests=error
  # ThreadSanitizer wants its shadow where address randomisation may have put something.
  if setarch -R true 2>/dev/null; then runner=(setarch -R); fi
  build tsan --target threads_tests && check tsan build-tsan -L threads --no-tests=error
  runner=()
  fuzz
}
fuzz() {
  if ! clang_fuzzes; then
    say "fuzz: not run, for want of clang with libFuzzer (Debian: clang, libclang-rt-dev)"
    count fuzz 0 0 1 0
    return
  fi
  build fuzz --target safetensors_fuzz || return
  local start=$SECONDS found=build-fuzz/found
  say "fuzz: test"
  mkdir -p "$found"
  if timeout 120 build-fuzz/bin/safetensors_fuzz -max_total_time=20 -artifact_prefix="$found/" -print_final_stats=1 \
    "$found" tests/cases/onnx 2>&1 | tail -n 12; then
    count fuzz 1 0 0 $((SECONDS - start))
  else
    count fuzz 0 1 0 $((SECONDS - start))
  fi
}
tier_aarch64() {
  if [ "$(uname -m)" = aarch64 ]; then
    say "aarch64: this machine is one, the other tiers ran there"
    return
  fi
  build aarch64 || return
  for cpu in cortex-a72 max; do QEMU_CPU=$cpu check "aarch64 $cpu" build-aarch64 -L fast --no-tests=error; done
}

setup=(--tests)
case " ${tiers[*]} " in *" aarch64 "*) setup+=(--cross) ;; esac
case " ${tiers[*]} " in *" sanitize "*) setup+=(--fuzz) ;; esac
scripts/setup.sh "${setup[@]}"
runner=()
for tier in "${tiers[@]}"; do "tier_$tier" || true; done

say "sum"
printf '%s\n' "${summary[@]}"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
