"""A folder for each class, its images cropped, scaled and flipped by chance that depends on nothing but the sample."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data import picture
from trainer.data.hashing import key, uniform
from trainer.data.order import Ids
from trainer.data.picture import Pixels
from trainer.data.source import Arrays

# The random crop of the Inception paper (https://arxiv.org/abs/1409.4842), which the ResNet recipes use.
_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)


class ImageFolder:
    """Classes are numbered by the order of their folders' names, images within them by theirs."""

    def __init__(self, path: str, image_size: int, classes: int, seed: int) -> None:
        folder = Path(path)
        names = _classes(folder, classes)
        listed = [[os.path.join(name, file) for file in _images(folder / name)] for name in names]
        self._folder = str(folder)
        self._files = [file for files in listed for file in files]
        self._labels = np.repeat(np.arange(len(names)), [len(files) for files in listed])
        self._size = image_size
        self._seed = seed
        _check_readable(folder, self._files)

    @property
    def length(self) -> int:
        return len(self._files)

    def fetch(self, ids: Ids, epoch: int) -> Arrays:
        images = np.empty((len(ids), 3, self._size, self._size), np.uint8)
        for image, sample in zip(images, ids.tolist(), strict=True):
            pixels = picture.read(os.path.join(self._folder, self._files[sample]))
            chance = uniform(key(self._seed, epoch, sample), np.arange(5, dtype=np.uint64))
            image[:] = _augmented(pixels, self._size, chance)
        return {"inputs": images, "targets": self._labels[ids].astype(np.int64)}


def _classes(folder: Path, classes: int) -> list[str]:
    if not folder.is_dir():
        raise _error(f"there is no folder {folder}", "give a folder that has one folder of images for each class")
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise _error(f"{folder} has no folders in it", "put the images of each class into a folder of their own")
    if len(names) > classes:
        message = f"{folder} has {len(names)} classes, more than the model's {classes}"
        raise _error(message, f"set model.classes to {len(names)} or more")
    return names


def _images(folder: Path) -> list[str]:
    known = picture.OWN | picture.PILLOW
    return sorted(entry.name for entry in os.scandir(folder) if os.path.splitext(entry.name)[1].lower() in known)


def _check_readable(folder: Path, files: list[str]) -> None:
    if not files:
        kinds = ", ".join(sorted(picture.OWN | picture.PILLOW))
        raise _error(f"no folder of {folder} has an image in it", f"these are known: {kinds}")
    other = next((file for file in files if os.path.splitext(file)[1].lower() not in picture.OWN), None)
    if other and not picture.has_pillow():
        raise _error(f"{folder / other} needs the package pillow", "install pillow, or convert images to .npy or .ppm")


def _augmented(pixels: Pixels, size: int, chance: NDArray[np.float64]) -> Pixels:
    top, left, height, width = _crop(pixels.shape[0], pixels.shape[1], chance)
    image = _scaled(pixels[top : top + height, left : left + width], size)
    return image[:, :, ::-1] if chance[4] < 0.5 else image  # noqa: PLR2004


def _crop(height: int, width: int, chance: NDArray[np.float64]) -> tuple[int, int, int, int]:
    """Area and shape by chance, cut down to what fits: no second try, so one draw of numbers is always enough."""
    area = height * width * (_AREA[0] + (_AREA[1] - _AREA[0]) * chance[0])
    ratio = math.exp(math.log(_RATIO[0]) + (math.log(_RATIO[1]) - math.log(_RATIO[0])) * chance[1])
    tall = min(height, max(1, round(math.sqrt(area / ratio))))
    wide = min(width, max(1, round(math.sqrt(area * ratio))))
    return int(chance[2] * (height - tall + 1)), int(chance[3] * (width - wide + 1)), tall, wide


def _scaled(pixels: Pixels, size: int) -> Pixels:
    """3 x size x size; torch's kernel works on bytes, smooths what it shrinks, and lets other threads run."""
    import torch  # noqa: PLC0415  # heavy, and a check of the folder does without
    from torch.nn.functional import interpolate  # noqa: PLC0415

    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
    return interpolate(image, (size, size), mode="bilinear", antialias=True)[0].numpy()


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("data.path", message, fix)])
