#!/usr/bin/env bash
# The engine on a GPU, 8 minutes at most: random weights of an 8B shape, acceptance from a profile, batch 1 to 128.
#   benchmarks/gpu.sh            on the machine with the GPU, from a checkout with the engine's packages
#   benchmarks/gpu.sh --dry-run  a small shape on the CPU, to see that it runs
# Results go to benchmarks/results/engine_gpu.json. Not yet run on a GPU: only the dry run is verified.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
test -x .venv/bin/python && python=.venv/bin/python
mkdir -p benchmarks/results
if [ "${1:-}" = "--dry-run" ]; then
  exec "$python" -m benchmarks.engine_gpu --shape small --device cpu --batches 1,4,8 --limit-s 60
fi
"$python" -c 'import torch, sys; sys.exit(None if torch.cuda.is_available() else "no GPU: try --dry-run")'
timeout 480 "$python" -m benchmarks.engine_gpu --shape 8b --device cuda | tee /dev/stderr | tail -n 1 >benchmarks/results/engine_gpu.json
