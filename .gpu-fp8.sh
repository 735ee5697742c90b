#!/bin/bash
# One H200, torch 2.11: fp8 with delayed scaling. Tests of the new parts, then steps of Llama 1B and the cast kernels
# alone. At most 300 s; each part has its own limit, and the next one runs whatever became of it.
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-fp8 TRITON_CACHE_DIR=/tmp/triton-fp8
left() { echo $((300 - SECONDS)); }
part() { # part NAME SECONDS COMMAND...
  local name=$1 limit=$2 began=$SECONDS
  shift 2
  [ "$limit" -le "$(left)" ] || limit=$(left)
  if [ "$limit" -lt 5 ]; then echo "== $name: no time left"; return; fi
  echo "== $name (at $SECONDS s, at most $limit s)"
  timeout -k 5 "$limit" "$@" 2>&1 | grep -v -i "warning" | tail -60
  echo "== $name: rc ${PIPESTATUS[0]}, $((SECONDS - began)) s"
}
cat >/tmp/fp8_rates.py <<'P'
"""Bytes per second of the cast kernels for some tiles, and how long the search takes that finds a scale."""
import torch
from trainer.models import fp8_cast_kernel as c, fp8_swiglu_kernel as s

def ms(run, n=20):
    for _ in range(3): run()
    torch.cuda.synchronize()
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    a.record()
    for _ in range(n): run()
    b.record(); torch.cuda.synchronize()
    return a.elapsed_time(b) / n

M = 32768
one = torch.full((), 3e-3, device="cuda")
w = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
for _ in range(150): w @ w
for columns in (2048, 3072, 8192):
    x = torch.randn(M, columns, device="cuda", dtype=torch.bfloat16)
    for tile in ((64, 128, 4), (64, 256, 8), (64, 256, 4), (128, 128, 8), (128, 64, 4), (64, 128, 8)):
        c._TILE_ROWS, c._TILE_COLUMNS, c._TILE_WARPS = tile
        t = ms(lambda: c.cast_tiles(x, one, torch.float8_e4m3fn))
        print(f"cast {columns} {tile}: {t:.3f} ms, {x.numel() * 4 / t / 1e6:.0f} GB/s", flush=True)
    figures = torch.zeros(2, device="cuda")
    print(f"search that is not needed: {ms(lambda: c.find_largest(x, one, figures[1:]), 200) * 1000:.1f} us", flush=True)
    del x
joined = torch.randn(M, 16384, device="cuda", dtype=torch.bfloat16)
g = torch.randn(M, 8192, device="cuda", dtype=torch.bfloat16)
for tile in ((64, 64, 8), (64, 128, 16), (128, 64, 16), (32, 128, 8), (64, 64, 4), (64, 128, 8), (128, 32, 8)):
    s._TILE_ROWS, s._TILE_COLUMNS, s._TILE_WARPS = tile
    a, d = ms(lambda: s.activate_tiles(joined, one)), ms(lambda: s.differentiate_tiles(g, joined, one, 1.1))
    print(f"swiglu {tile}: forward {a:.3f} ms {g.numel() * 6 / a / 1e6:.0f} GB/s, backward {d:.3f} ms {g.numel() * 10 / d / 1e6:.0f} GB/s", flush=True)
P
part "kernels against torch" 50 python3 -m pytest -q -p no:cacheprovider -o addopts= --tb=short tests/gpu/test_fp8.py -k "delayed_cast or delayed_swiglu"
part "delayed step of Llama 1B" 100 python3 -m benchmarks.gpu llama-1b-fp8-delayed --rounds 2 --no-floor --profile
part "tensor step of Llama 1B" 75 python3 -m benchmarks.gpu llama-1b-fp8 --rounds 2 --no-floor --profile
part "runs in fp8" 80 python3 -m pytest -q -p no:cacheprovider -o addopts= --tb=short tests/gpu/test_fp8.py -k "delayed and not delayed_cast and not delayed_swiglu"
cat >/tmp/fp8_unfused.py <<'P'
import sys
from benchmarks import gpu
from benchmarks.gpu_cases import leave_out
sys.argv[1:] = ["llama-1b-fp8-delayed", "--rounds", "2", "--no-floor", "--profile"]
with leave_out("fp8-swiglu"):
    gpu.main()
P
part "delayed step without the fused SwiGLU" 65 python3 /tmp/fp8_unfused.py
part "rates of the kernels" 40 python3 /tmp/fp8_rates.py
