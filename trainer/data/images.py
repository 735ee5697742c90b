"""Images in one folder per class; random crops and flips depend only on seed, epoch and sample.

Files in .npy and .ppm format are decoded here, all others by Pillow.
"""

from __future__ import annotations

import math
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.hashing import hash_uniform, make_key
from trainer.data.order import Ids
from trainer.data.source import Arrays
from trainer.life.cause import classify_system_error

Pixels: TypeAlias = NDArray[np.uint8]

NATIVE_SUFFIXES = frozenset({".npy", ".ppm"})
PILLOW_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"})

# The random crop of the Inception paper (https://arxiv.org/abs/1409.4842), which the ResNet recipes use.
_CROP_AREA = (0.08, 1.0)
_CROP_RATIO = (3 / 4, 4 / 3)
_FLIP_PROBABILITY = 0.5
# The usual evaluation of ImageNet models: 224 pixels from the centre of an image whose shorter side has 256.
_CENTRE_SIDE = 224 / 256
_PPM_HEADER = re.compile(rb"P6(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+255\s")


class ImageFolder:
    """A data set of images; classes are numbered in the order of their folders' names."""

    is_remote = False

    def __init__(self, path: str, image_size: int, classes: int, seed: int) -> None:
        folder = Path(path)
        names = _list_classes(folder, classes)
        listed = [[os.path.join(name, file) for file in _list_images(folder / name)] for name in names]
        self._folder = str(folder)
        self._files = [file for files in listed for file in files]
        self.group_sizes = np.array([len(files) for files in listed], np.int64)
        self.fingerprint = sha256("\n".join(self._files).encode()).hexdigest()[:16]
        self._labels = np.repeat(np.arange(len(names)), self.group_sizes)
        self._size = image_size
        self._seed = seed
        _check_files(folder, self._files)

    @property
    def length(self) -> int:
        return len(self._files)

    def fetch(self, ids: Ids, epoch: int | None) -> Arrays:
        images = np.empty((len(ids), 3, self._size, self._size), np.uint8)
        for image, sample in zip(images, ids.tolist(), strict=True):
            pixels = read_image(os.path.join(self._folder, self._files[sample]))
            if epoch is None:
                image[:] = _crop_centre(pixels, self._size)
                continue
            draws = hash_uniform(make_key(self._seed, epoch, sample), np.arange(5, dtype=np.uint64))
            image[:] = _augment(pixels, self._size, draws)
        return {"inputs": images, "targets": self._labels[ids].astype(np.int64)}


def read_image(path: str) -> Pixels:
    """Return an image as height x width x 3, or raise a ConfigError that names the file.

    An error of the filesystem or the network is raised as it is: the file may be readable after a restart.
    """
    decode = {".npy": _decode_npy, ".ppm": _decode_ppm}.get(Path(path).suffix.lower(), _decode_with_pillow)
    try:
        return decode(path)
    except (OSError, ValueError, SyntaxError) as error:  # Pillow raises SyntaxError for a broken PNG
        if isinstance(error, OSError) and classify_system_error(error):
            raise
        raise _error(f"{path} cannot be decoded ({error})", "replace or remove the file") from error


def _decode_npy(path: str) -> Pixels:
    pixels: Pixels = np.load(path, allow_pickle=False)
    if pixels.dtype != np.uint8 or pixels.shape[2:] != (3,):
        raise ValueError(f"it is {pixels.dtype} {pixels.shape}, but must be uint8 (height, width, 3)")
    return pixels


def _decode_ppm(path: str) -> Pixels:
    raw = Path(path).read_bytes()
    header = _PPM_HEADER.match(raw)
    if not header:
        raise ValueError("it has no header of a binary 8-bit PPM")
    width, height = int(header[1]), int(header[2])
    return np.frombuffer(raw, np.uint8, height * width * 3, header.end()).reshape(height, width, 3)


def _decode_with_pillow(path: str) -> Pixels:
    from PIL import Image  # noqa: PLC0415 - optional

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def _has_pillow() -> bool:
    try:
        import PIL.Image  # noqa: F401, PLC0415 - optional
    except ImportError:
        return False
    return True


def _list_classes(folder: Path, classes: int) -> list[str]:
    if not folder.is_dir():
        raise _error(f"there is no folder {folder}", "give a folder with one subfolder of images per class")
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise _error(f"{folder} has no subfolders", "put the images of each class into a subfolder")
    if len(names) > classes:
        message = f"{folder} has {len(names)} classes, more than the model's {classes}"
        raise _error(message, f"set model.classes to {len(names)} or more")
    return names


def _list_images(folder: Path) -> list[str]:
    suffixes = NATIVE_SUFFIXES | PILLOW_SUFFIXES
    return sorted(entry.name for entry in os.scandir(folder) if os.path.splitext(entry.name)[1].lower() in suffixes)


def _check_files(folder: Path, files: list[str]) -> None:
    if not files:
        suffixes = ", ".join(sorted(NATIVE_SUFFIXES | PILLOW_SUFFIXES))
        raise _error(f"no subfolder of {folder} contains an image", f"supported: {suffixes}")
    foreign = next((file for file in files if os.path.splitext(file)[1].lower() not in NATIVE_SUFFIXES), None)
    if foreign and not _has_pillow():
        message = f"{folder / foreign} needs the package pillow"
        raise _error(message, "install pillow, or convert the images to .npy or .ppm")


def _augment(pixels: Pixels, size: int, draws: NDArray[np.float64]) -> Pixels:
    top, left, height, width = _choose_crop(pixels.shape[0], pixels.shape[1], draws)
    image = _resize(pixels[top : top + height, left : left + width], size)
    return image[:, :, ::-1] if draws[4] < _FLIP_PROBABILITY else image


def _crop_centre(pixels: Pixels, size: int) -> Pixels:
    height, width = pixels.shape[:2]
    side = max(1, round(_CENTRE_SIDE * min(height, width)))
    top, left = (height - side) // 2, (width - side) // 2
    return _resize(pixels[top : top + side, left : left + side], size)


def _choose_crop(height: int, width: int, draws: NDArray[np.float64]) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random crop.

    A crop that is larger than the image is cut down instead of drawn again, so that a fixed number of draws suffices.
    """
    area = height * width * (_CROP_AREA[0] + (_CROP_AREA[1] - _CROP_AREA[0]) * draws[0])
    low, high = (math.log(ratio) for ratio in _CROP_RATIO)
    ratio = math.exp(low + (high - low) * draws[1])
    crop_height = min(height, max(1, round(math.sqrt(area / ratio))))
    crop_width = min(width, max(1, round(math.sqrt(area * ratio))))
    top, left = int(draws[2] * (height - crop_height + 1)), int(draws[3] * (width - crop_width + 1))
    return top, left, crop_height, crop_width


def _resize(pixels: Pixels, size: int) -> Pixels:
    """Return 3 x size x size; torch's kernel works on bytes, antialiases, and releases the interpreter lock."""
    # Imported here because torch is heavy and checking a folder does not need it.
    import torch  # noqa: PLC0415
    from torch.nn.functional import interpolate  # noqa: PLC0415

    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    return interpolate(image, (size, size), mode="bilinear", antialias=True)[0].numpy()


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("data.path", message, fix)])
