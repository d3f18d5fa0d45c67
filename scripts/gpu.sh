#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: scripts/gpu.sh FOLDER [build | tests | sanitize | bench | python | models]...
# The first four unless named.
#   build     what is not up to date in build/; without this step what stands there is used
#   tests     every CUDA row on every case that it does not refuse, side by side; random problems
#   sanitize  memcheck, initcheck, synccheck and racecheck over one case for each code path
#   bench     ours, cuDNN and PyTorch's flash backend in turns: decode, backward, then forward by graph replays and eager calls
#             (bench/gpu_decode.py, gpu_backward_bench.py, gpu_bench.py)
#   python    the wheel (that of TILEWISE_WHEEL, or built against build/) in a virtual environment over the system's packages,
#             and python/tests on the CPU and the GPU, a process for each part
#   models    whole models end to end, with that environment: bench/python_training.py
# Logs and JSON go to FOLDER; the benchmark's table comes last. Exit status: 0 if tests and sanitizers are clean.
. "$(dirname "$0")/common.sh"

[ $# -ge 1 ] || die "give a folder for the results: scripts/gpu.sh FOLDER [build | tests | sanitize | bench | python | models]..."
mkdir -p "$1"
results=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- build tests sanitize bench
have nvidia-smi && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader ||
  die "nvidia-smi is not here: no NVIDIA driver"

tests=build/bin/cuda_kernels_test
cache_tests=build/bin/cuda_cache_test
failed=0

# run_shards LOG SHARDS COMMAND...: the command's tests in as many processes, as CTest would start them (the oracle's work
# is the host's), their output in LOG. The greatest of their exit statuses.
run_shards() {
  local log=$1 shards=$2 status=0 one i running=()
  shift 2
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$@" >"$log.$i" 2>&1 &
    running+=($!)
  done
  for i in "${running[@]}"; do
    one=0
    wait "$i" || one=$?
    [ $one -gt $status ] && status=$one
  done
  for ((i = 0; i < shards; ++i)); do cat "$log.$i"; done >"$log"
  rm "$log".[0-9]*
  return $status
}

run_tests() {
  local shards status=0
  shards=$(nproc)
  [ "$shards" -gt 16 ] && shards=16
  say "tests: $shards processes"
  SECONDS=0
  run_shards "$results/tests.log" "$shards" timeout 300 $tests || status=1
  run_shards "$results/cache_tests.log" 4 timeout 120 $cache_tests || status=1
  # What fills the device, and what a kernel leaves in its multiprocessors, when nothing else is at work on it.
  TILEWISE_TEST_ALONE=1 run_shards "$results/alone_tests.log" 1 timeout 120 $tests \
    --gtest_filter='*OutOfMemoryOfTheOneCallForm*:CudaLeftovers*' || status=1
  cat "$results/cache_tests.log" "$results/alone_tests.log" >>"$results/tests.log"
  rm "$results/cache_tests.log" "$results/alone_tests.log"
  grep -hE '^\[  FAILED  \] [A-Z]' "$results/tests.log" | sort -u | head -20 || true
  local passed bad skipped
  passed=$(grep -cE '^\[       OK \]' "$results/tests.log" || true)
  bad=$({ grep -oE '^\[  FAILED  \] [A-Z][^, ]*' "$results/tests.log" || true; } | sort -u | wc -l)
  skipped=$(grep -cE '^\[  SKIPPED \] [A-Z].*ms\)' "$results/tests.log" || true)
  printf '{"schema": 1, "passed": %d, "failed": %d, "skipped": %d, "seconds": %d}\n' \
    "$passed" "$bad" "$skipped" $SECONDS >"$results/tests.json"
  say "tests: $passed passed, $bad failed, $skipped skipped, $SECONDS s"
  [ $status = 0 ] && [ "$passed" -gt 0 ] || failed=1
  timeout 120 build/bin/tilewise verify --device cuda --count 60 --seed "$RANDOM" | tee "$results/verify.log" || failed=1
}

# One case for each path through a kernel: plain, odd head dimension, wide values, bias with mask and segments, packed
# lengths with dropout, bits, strides, NaN that is seen by some rows, windows, grouped heads; caches in pages, also quantised
# with scales by groups of rows; of backward besides: accumulated gradients, one gradient alone, dbias over what repeats.
cases=dense_square,dense_d33,dense_d576_dv512,dense_gqa_7,masks_everything,masks_window_causal,masks_mask_bits_padded_rows
cases+=,dense_f32_grads_accumulate,dense_only_dk,scores_bias_all_repeat_but_rows_keys,lengths_packed_alibi_dropout,lengths_q_lengths_causal,layouts_sliced_37,extremes_nan_key_middle,scores_sinks_dlse
cases+=,extremes_late_and_low_causal,cache_pages_16,cache_i8_pages_groups,cache_f8_pages

# sanitize TOOL SHARDS: the kernels' cases and the append kernel under it; its log; its exit status. Not what provokes errors,
# nor what only large sizes show.
sanitize() {
  local tool=$1 log=$results/$1.log status=0 one=0
  local under=(timeout 300 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 1000)
  TILEWISE_TEST_CASES=$cases run_shards "$log" "$2" "${under[@]}" $tests --gtest_filter='-*OutOfMemory*:*UnderLoad*:CudaFaults*:CudaFar*:*CudaLarge*:*CudaInvariance*' ||
    status=$?
  run_shards "$log.append" 1 "${under[@]}" $cache_tests --gtest_filter='*Appends*' || one=$?
  cat "$log.append" >>"$log"
  rm "$log.append"
  [ $one -gt $status ] && status=$one
  if [ "$tool" = racecheck ] && [ $status = 9 ] && ! grep -q '^\[  FAILED  \]' "$log"; then
    # What is left after the hazards that tests/racecheck.allow gives a reason for.
    local hazards left
    hazards=$(grep -E '^========= (Error|Warning):.*(Race|hazard)' "$log" || true)
    left=$(grep -vFf <(sed -e '/^#/d' -e 's/ *#.*//' -e '/^$/d' tests/racecheck.allow) <<<"$hazards" || true)
    if [ -n "$hazards" ] && [ -z "$left" ]; then status=0; fi
  fi
  return $status
}

run_sanitizers() {
  local tool shards status verdict
  declare -A running
  have compute-sanitizer || { say "sanitize: compute-sanitizer is not here"; failed=1; return; }
  shards=$(($(nproc) / 4))
  [ $shards -gt 0 ] || shards=1
  SECONDS=0
  for tool in memcheck initcheck synccheck racecheck; do
    sanitize $tool $shards &
    running[$tool]=$!
  done
  for tool in memcheck initcheck synccheck racecheck; do
    status=0
    wait "${running[$tool]}" || status=$?
    verdict=clean
    if [ $status != 0 ]; then
      failed=1
      verdict="found something, see $results/$tool.log"
      if grep -q SUMMARY "$results/$tool.log" && ! grep SUMMARY "$results/$tool.log" | grep -qv 'SUMMARY: 0 '; then
        verdict="clean as far as it came, but a test failed or was cut by time, see $results/$tool.log"
      fi
    fi
    say "sanitize: $tool $verdict, $SECONDS s so far"
  done
}

run_bench() {
  say "bench"
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    python3 bench/gpu_decode.py --output "$results/decode.json" || failed=1
    python3 bench/gpu_backward_bench.py --dims 64,128,256 --output "$results/backward.json" || failed=1
    python3 bench/gpu_bench.py --output "$results/bench.json" || failed=1
  else
    say "bench: no PyTorch with CUDA here, so no rivals"
    build/bin/tilewise bench --device cuda --dtype bf16 --batch 4 --heads 16 --head-dim 64,128 --seqlen 512,4096 \
      --causal false,true --json | tee "$results/bench.json" || failed=1
  fi
}

venv=$PWD/build/python-gpu
# No registry is needed where nanobind and scikit-build-core are installed, so that this runs without a network. pip is python3's,
# and so are the packages, of an environment too, which --system-site-packages would not reach.
make_venv() {
  local log=$results/venv.log wheel=${TILEWISE_WHEEL-}
  python3 -m venv --clear --without-pip "$venv" >"$log" 2>&1 || die "python3 -m venv failed, see $log"
  python3 -c 'import site; print("\n".join(site.getsitepackages()))' >"$(echo "$venv"/lib/python3*/site-packages)/outer.pth"
  if [ -z "$wheel" ]; then
    make_wheel python3 build "$venv" >>"$log" 2>&1 ||
      die "the wheel does not build, see $log (it needs nanobind and scikit-build-core)"
    wheel=$(echo "$venv"/wheel/tilewise-*.whl)
  fi
  python3 -m pip --python "$venv/bin/python" install --no-index --no-deps --ignore-installed "$wheel" >>"$log" 2>&1 ||
    die "$wheel does not install, see $log"
}

# One process a part: the tests are the host's arithmetic mostly.
run_python() {
  local part parts=(test_gpu. OnGpu.test_options 'test_numbers.*OnGpu.test_[!o]' 'test_torch.*OnGpu' 'test_cache.*OnGpu'
    'test_flash_*OnGpu' 'test_arguments.*OnGpu' 'test_forms.*OnGpu' 'test_transformers.*OnGpu' 'test_masks.*OnGpu' host)
  make_venv
  SECONDS=0
  for part in "${!parts[@]}"; do
    (
      cd "$venv"
      export OMP_NUM_THREADS=2 XLA_PYTHON_CLIENT_PREALLOCATE=false HF_HUB_OFFLINE=1
      case ${parts[part]} in
        host) CUDA_VISIBLE_DEVICES='' timeout --foreground 300 bin/python "$OLDPWD/python/tests/run.py" ;;
        *) timeout --foreground 300 bin/python "$OLDPWD/python/tests/run.py" "${parts[part]}" ;;
      esac >"$results/python_$part.log" 2>&1
    ) &
  done
  wait
  local passed=0 bad=0 skipped=0 sum
  for part in "${!parts[@]}"; do
    sum=$(tail -n 1 "$results/python_$part.log")
    if [[ $sum =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
      passed=$((passed + BASH_REMATCH[1])) bad=$((bad + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
    else
      bad=$((bad + 1))
      say "python: ${parts[part]} did not end: $sum"
    fi
  done
  grep -hE '^(FAIL|ERROR)' "$results"/python_*.log | sort -u | head -20 || true
  say "python: $passed passed, $bad failed, $skipped skipped, $SECONDS s"
  [ $bad = 0 ] && [ $passed -gt 0 ] || failed=1
}

run_models() {
  [ -x "$venv/bin/python" ] || make_venv
  "$venv/bin/python" bench/python_training.py --json "$results/models.json" --html "$results/models.html" || failed=1
}

for step in "$@"; do
  case $step in python | models) [ -n "${TILEWISE_WHEEL-}" ] || [ -e build/CMakeCache.txt ] || die "build/ is not there; the step build makes it" ;; esac
  [[ $step =~ ^(build|python|models)$ ]] || { [ -x $tests ] && [ -x $cache_tests ]; } ||
    die "$tests or $cache_tests is not here; the step build makes it"
  case $step in
    build) scripts/build.sh release -DTILEWISE_CUDA=ON -DTILEWISE_TESTS=ON ;;
    tests) run_tests ;;
    sanitize) run_sanitizers ;;
    bench) run_bench ;;
    python) run_python ;;
    models) run_models ;;
    *) die "unknown step $step; accepted: build, tests, sanitize, bench, python, models" ;;
  esac
done
exit $failed
