"""Check that the machine meets the requirements of these tests; without them the tests fail and are not skipped."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator

PACKAGES = {
    "torch": "torch 2.11 to 2.15, built for CUDA",
    "pytest": "pytest",
    "pynvml": "nvidia-ml-py, for what the driver reports about the GPU",
    "triton": "triton, which comes with torch for CUDA and compiles models",
}
GIB = 2**30
FREE_GIB = 20.0


def list_missing() -> list[str]:
    missing = [description for name, description in PACKAGES.items() if importlib.util.find_spec(name) is None]
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        missing.append("a C compiler (cc, gcc or clang), for triton")
    return missing if importlib.util.find_spec("torch") is None else [*missing, *_check_torch()]


def _check_torch() -> Iterator[str]:
    import torch  # noqa: PLC0415  # may not be installed

    if not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        yield f"a GPU: torch {torch.__version__}, built for {built}, sees none (does nvidia-smi?)"
        return
    if not torch.distributed.is_nccl_available():
        yield "torch with NCCL"
    free = torch.cuda.mem_get_info()[0] / GIB
    if free < FREE_GIB:
        yield f"{FREE_GIB:g} GiB of free memory on {torch.cuda.get_device_name()}: it has {free:.1f}"
