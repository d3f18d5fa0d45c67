#!/usr/bin/env bash
# Gets the rivals that `tilewise bench --rivals` and bench/torch_rival.py time, from package registries only, into
# build/rivals: scripts/rivals.sh [three-step] [ggml] [pytorch]; without names, all of them.
#   three-step   OpenBLAS, Debian's libopenblas0-pthread
#   ggml         PyPI's libggml-python (3 MB): prebuilt libraries of ggml
#   pytorch      PyPI's torch, x86-64: a download of 2 GB, 6 GB on disk, since that wheel wants NVIDIA's libraries too
# What cannot be had is listed as "not run" with the reason; that is no failure.
. "$(dirname "$0")/common.sh"

all=(three-step ggml pytorch)
for name in "$@"; do
  case " ${all[*]} " in *" $name "*) ;; *) die "unknown rival $name; accepted: ${all[*]}" ;; esac
done
wanted=("$@")
[ $# -gt 0 ] || wanted=("${all[@]}")
folder=$PWD/build/rivals
venv=$folder/venv
mkdir -p "$folder"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

ready() { printf '%-12s %s\n' "$1" "$2"; }
not_run() { printf '%-12s not run: %s\n' "$1" "$2"; }
last_error() { grep -iE 'error|no matching' "$log" | tail -n 1 || tail -n 1 "$log"; }

python_folder() {
  [ -x "$venv/bin/pip" ] && return
  python3 -m venv "$venv" >"$log" 2>&1 && return
  if [ "$(id -u)" = 0 ] && have apt-get; then
    apt-get -q -y install --no-install-recommends python3-venv >"$log" 2>&1 </dev/null || true
  fi
  python3 -m venv --clear "$venv" >"$log" 2>&1
}

get_three_step() {
  if ! compgen -G "/usr/lib/*/libopenblas.so.0" >/dev/null && ! compgen -G "/usr/lib*/libopenblas.so.0" >/dev/null; then
    scripts/setup.sh >"$log" 2>&1 || { not_run three-step "$(last_error)"; return; }
  fi
  ready three-step "OpenBLAS of the system"
}

get_ggml() {
  python_folder || { not_run ggml "no Python environment: $(last_error)"; return; }
  "$venv/bin/pip" install -q --disable-pip-version-check --only-binary :all: --no-deps libggml-python \
    >"$log" 2>&1 || { not_run ggml "$(last_error)"; return; }
  local libraries
  libraries=$(find "$venv/lib" -name libggml-cpu.so -printf '%h\n' | head -n 1)
  [ -n "$libraries" ] || { not_run ggml "the package has no libggml-cpu.so"; return; }
  ln -sfn "$libraries" "$folder/ggml"
  ready ggml "$("$venv/bin/pip" list --format=freeze --disable-pip-version-check 2>/dev/null | grep -i ^libggml)"
}

get_pytorch() {
  local free_gb
  free_gb=$(df -Pk "$folder" | awk 'NR == 2 {print int($4 / 1048576)}')
  if ! [ -e "$folder/pytorch" ] && [ "$free_gb" -lt 14 ]; then
    not_run pytorch "needs 14 GB of disk while it installs, $free_gb GB free"
    return
  fi
  python_folder || { not_run pytorch "no Python environment: $(last_error)"; return; }
  "$venv/bin/pip" install -q --disable-pip-version-check --no-cache-dir --only-binary :all: torch >"$log" 2>&1 ||
    { not_run pytorch "$(last_error)"; return; }
  local version
  version=$("$venv/bin/python" -W ignore -c 'import torch
torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
print(torch.__version__)' 2>"$log") || { not_run pytorch "$(tail -n 1 "$log")"; return; }
  # Not a link: Python finds its environment by where it was started from.
  printf '#!/bin/sh\nexec "%s" "$@"\n' "$venv/bin/python" >"$folder/pytorch"
  chmod +x "$folder/pytorch"
  ready pytorch "torch $version"
}

for name in "${wanted[@]}"; do
  case $name in
    three-step) get_three_step ;;
    ggml) get_ggml ;;
    pytorch) get_pytorch ;;
  esac
done
not_run cudnn "needs an NVIDIA GPU"
