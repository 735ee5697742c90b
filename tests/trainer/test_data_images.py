"""Image folders: decoding, repeatable random augmentation, and messages for folders that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.config.errors import ConfigError
from trainer.config.models import ResNetConfig
from trainer.config.schema import Config, DataConfig
from trainer.data.registry import open_source
from trainer.life.cause import Cause, classify


def make_image(colour, height=40, width=60):
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:] = colour
    pixels[:, : width // 2] //= 2
    return pixels


def write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, pixels)
    elif path.suffix == ".ppm":
        head = f"P6\n# made by hand\n{pixels.shape[1]} {pixels.shape[0]}\n255\n"
        path.write_bytes(head.encode() + pixels.tobytes())
    else:
        from PIL import Image

        Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path) -> Path:
    root = tmp_path / "images"
    write_image(root / "blue" / "1.png", make_image((0, 0, 200)))
    write_image(root / "blue" / "2.jpg", make_image((0, 0, 200)))
    write_image(root / "green" / "1.ppm", make_image((0, 200, 0)))
    write_image(root / "red" / "1.npy", make_image((200, 0, 0)))
    write_image(root / "red" / "2.JPEG", make_image((200, 0, 0)))
    (root / "red" / "notes.txt").write_text("not an image")
    (root / ".cache").mkdir()
    return root


def open_folder(folder: Path, seed=1, size=16, classes=3):
    from trainer.config.schema import RunConfig

    model = ResNetConfig(depth=18, image_size=size, classes=classes)
    data = DataConfig(kind="images", path=str(folder))
    return open_source(Config(name="test", model=model, data=data, run=RunConfig(seed=seed)))


def test_every_file_format_is_decoded_and_labelled(folder):
    source = open_folder(folder)
    assert source.length == 5
    batch = source.fetch(np.arange(5), 0)
    assert batch["inputs"].dtype == np.uint8
    assert batch["inputs"].shape == (5, 3, 16, 16)
    assert batch["targets"].tolist() == [0, 0, 1, 2, 2]
    brightest = batch["inputs"].mean((2, 3)).argmax(1)
    assert brightest.tolist() == [2, 2, 1, 0, 0]


def test_augmentation_depends_only_on_seed_epoch_and_sample(folder):
    source = open_folder(folder)
    whole = source.fetch(np.arange(5), 3)["inputs"]
    assert np.array_equal(open_folder(folder).fetch(np.array([4, 2]), 3)["inputs"], whole[[4, 2]])
    assert not np.array_equal(source.fetch(np.arange(5), 4)["inputs"], whole)
    assert not np.array_equal(open_folder(folder, seed=2).fetch(np.arange(5), 3)["inputs"], whole)


def test_an_image_is_flipped_in_half_of_the_epochs(tmp_path):
    """The left half is dark: of the crops with both halves, as many are dark on the left as on the right."""
    write_image(tmp_path / "i" / "a" / "1.npy", make_image((200, 200, 200)))
    source = open_folder(tmp_path / "i")
    sides = [source.fetch(np.array([0]), epoch)["inputs"].mean((0, 1, 2)) for epoch in range(300)]
    leftward = sum(side[0] < side[-1] - 50 for side in sides)
    rightward = sum(side[-1] < side[0] - 50 for side in sides)
    assert leftward + rightward > 100
    assert abs(leftward - rightward) < 50


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 50), (300, 7), (16, 16)])
def test_images_of_any_shape_can_be_cropped(tmp_path, height, width):
    write_image(tmp_path / "i" / "a" / "1.npy", np.full((height, width, 3), 77, np.uint8))
    source = open_folder(tmp_path / "i")
    for epoch in range(20):
        assert (source.fetch(np.array([0]), epoch)["inputs"] == 77).all()


def test_a_broken_file_is_named_when_it_is_read(folder):
    for name, raw in [("3.png", b"\x89PNG\r\n\x1a\nbroken"), ("4.npy", b"x"), ("5.ppm", b"P6 9 9 255\nx")]:
        file = folder / "blue" / name
        file.write_bytes(raw)
        with pytest.raises(ConfigError, match=f"blue/{name} cannot be decoded .*; replace or remove the file"):
            open_folder(folder).fetch(np.array([2]), 0)
        file.unlink()


@pytest.mark.parametrize("name", ["3.png", "3.npy", "3.ppm"])
def test_an_error_of_the_storage_is_not_called_a_broken_file(folder, name):
    (folder / "blue" / name).symlink_to("/proc/self/mem")  # its first bytes are an I/O error
    with pytest.raises(OSError, match="Input/output error") as caught:
        open_folder(folder).fetch(np.array([2]), 0)
    assert classify(caught.value) is Cause.STORAGE


def test_an_array_of_another_shape_is_rejected(folder):
    np.save(folder / "blue" / "0.npy", np.zeros((3, 8, 8), np.float32))
    with pytest.raises(ConfigError, match=r"it is float32 \(3, 8, 8\), but must be uint8 \(height, width, 3\)"):
        open_folder(folder).fetch(np.array([0]), 0)


def test_unusable_folders_are_rejected(folder, tmp_path):
    (tmp_path / "flat").mkdir()
    (tmp_path / "hollow" / "a").mkdir(parents=True)
    for path, classes, message in [
        (tmp_path / "gone", 3, "there is no folder"),
        (tmp_path / "flat", 3, "has no subfolders; put the images of each class into a subfolder"),
        (tmp_path / "hollow", 3, "contains an image; supported: .bmp, .gif, .jpeg"),
        (folder, 2, "has 3 classes, more than the model's 2; set model.classes to 3 or more"),
    ]:
        with pytest.raises(ConfigError) as caught:
            open_folder(path, classes=classes)
        assert message in str(caught.value)


def test_npy_and_ppm_work_without_pillow(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"blue/1.png needs the package pillow; install pillow, or convert"):
        open_folder(folder)
    write_image(tmp_path / "own" / "a" / "1.ppm", make_image((1, 2, 3)))
    write_image(tmp_path / "own" / "a" / "2.npy", make_image((1, 2, 3)))
    assert open_folder(tmp_path / "own").fetch(np.arange(2), 0)["inputs"].shape == (2, 3, 16, 16)
