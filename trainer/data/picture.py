"""Files to pixels: .npy and .ppm by ourselves, everything else through Pillow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainer.config.errors import ConfigError, ConfigProblem

Pixels: TypeAlias = NDArray[np.uint8]

OWN = frozenset({".npy", ".ppm"})
PILLOW = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})

_PPM = re.compile(rb"P6(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+255\s")


def read(path: str) -> Pixels:
    """Height x width x 3. A file that cannot be decoded is named."""
    decode = {".npy": _npy, ".ppm": _ppm}.get(Path(path).suffix.lower(), _pillow)
    try:
        return decode(path)
    except (OSError, ValueError, SyntaxError) as error:  # Pillow raises SyntaxError for a broken PNG
        message = f"{path} cannot be decoded ({error})"
        raise ConfigError([ConfigProblem("data.path", message, "replace or remove the file")]) from error


def has_pillow() -> bool:
    try:
        import PIL.Image  # noqa: F401, PLC0415
    except ImportError:
        return False
    return True


def _npy(path: str) -> Pixels:
    pixels: Pixels = np.load(path, allow_pickle=False)
    if pixels.dtype != np.uint8 or pixels.shape[2:] != (3,):
        raise ValueError(f"it is {pixels.dtype} {pixels.shape}, and uint8 (height, width, 3) is needed")
    return pixels


def _ppm(path: str) -> Pixels:
    raw = Path(path).read_bytes()
    header = _PPM.match(raw)
    if not header:
        raise ValueError("its header is not that of a binary 8-bit PPM")
    width, height = int(header[1]), int(header[2])
    return np.frombuffer(raw, np.uint8, height * width * 3, header.end()).reshape(height, width, 3)


def _pillow(path: str) -> Pixels:
    from PIL import Image  # noqa: PLC0415  # used where present

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))
