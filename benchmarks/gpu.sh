#!/bin/sh
# Test and measure on a machine with CUDA, in at most 8 minutes, with what is installed there:
#
#   benchmarks/gpu.sh [FOLDER]        # the tables, and gpu.tar with all logs and pictures; by default into $OUT or build/gpu
#   CPU=1 benchmarks/gpu.sh [FOLDER]  # the same lines with the CPU in the GPU's place: only checks that they work
#
# It installs nothing. Packages that the machine lacks can lie in .carried, and what is missing is left out and said:
#
#   pip install --target .carried --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 --python-version 3.12 \
#       torchdata spdl spdl_core spdl_io
set -u
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
folder=${1:-${OUT:-build/gpu}}
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}:$PWD/.carried" MPLCONFIGDIR="$work/matplotlib" OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"
began=$(date +%s)
failed=""
if [ -n "${CPU:-}" ]; then
    export CUDA_VISIBLE_DEVICES=""
    quick=--quick
else
    quick=""
fi

# step NAME SECONDS COMMAND...: run a command under a limit of time, keep what it says, and go on whatever it does.
step() {
    name=$1 limit=$2
    shift 2
    left=$((480 - $(date +%s) + began))
    [ -n "${CPU:-}" ] && left=3600 limit=3600
    [ "$limit" -gt "$left" ] && limit=$left
    if [ "$limit" -lt 5 ]; then
        echo "$name: left out, 8 minutes are over" | tee -a "$work/summary.txt"
        failed="$failed $name"
        return
    fi
    start=$(date +%s)
    timeout --kill-after=10 "$limit" "$@" >"$work/$name.log" 2>&1
    code=$?
    echo "$name: exit status $code, $(($(date +%s) - start)) s" | tee -a "$work/summary.txt"
    [ "$code" -eq 0 ] || { failed="$failed $name"; tail -n 15 "$work/$name.log"; }
}

: >"$work/summary.txt"
step machine 60 "$python" -c "
import platform, subprocess, torch, torchvision
import loaderkit
print(platform.python_version(), torch.__version__, torchvision.__version__, loaderkit.__file__)
cuda = torch.cuda.is_available()
print(torch.cuda.get_device_name() if cuda else 'no CUDA: the CPU takes its place')
print(subprocess.run(['nvidia-smi'], capture_output=True, text=True).stdout if cuda else '')
raise SystemExit(0 if cuda or '$quick' else 'gpu.sh: torch.cuda.is_available() is False. To try the script on the CPU: CPU=1.')
"
if [ -n "$failed" ]; then
    cat "$work/machine.log"
    exit 1
fi
step steps 130 "$python" benchmarks/device_step.py $quick --out "$work/results"
step copies 150 "$python" benchmarks/device.py $quick --out "$work/results"
# Errors while files are collected are of packages that the machine lacks; the other files are tested.
step tests 170 "$python" -m pytest -m gpu -q -rs -p no:cacheprovider --continue-on-collection-errors \
    tests/device tests/engine/test_ring_pins.py tests/monitor/test_monitor.py tests/system/test_nested.py tests/datasets/media/test_decoders.py

for log in steps copies tests; do
    echo "== $log"
    [ -f "$work/$log.log" ] && tail -n 40 "$work/$log.log"
done
cp "$work/summary.txt" "$work"/results/*.csv "$folder" 2>/dev/null
tar -cf "$folder/gpu.tar" -C "$work" --exclude=./matplotlib .
echo "gpu.sh: $(($(date +%s) - began)) s, results in $folder/gpu.tar${failed:+, failed:$failed}"
[ -z "$failed" ]
