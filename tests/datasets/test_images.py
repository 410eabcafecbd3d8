"""Pictures in folders: torchvision's order and pixels, upright RGB whatever the file holds."""

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import torchvision
from drawing import draws, equal
from images_made import encode, need_picture_decoder, picture, pixels
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

import loaderkit as lk
from loaderkit import testing
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.images.decoders import PictureDecoder

Decode = Callable[[bytes], Tensor]


@pytest.fixture(params=get_args(PictureDecoder))
def decode(request: pytest.FixtureRequest) -> Decode:
    need_picture_decoder(request.param)
    return partial(decode_picture, decoder=request.param)


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "LA", "RGBA", "1"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_any_mode_becomes_rgb(decode: Decode, mode: str, kind: str) -> None:
    image = picture(mode=mode)
    if kind == "WEBP" and mode in ("P", "1", "L", "LA"):
        pytest.skip("WebP has no such mode")
    options = {"lossless": True} if kind == "WEBP" else {}
    found = decode(encode(image, kind, **options))
    assert found.dtype == torch.uint8
    assert found.shape == (3, 9, 12)
    assert torch.equal(found, pixels(image))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpegs_are_as_pillow_reads_them(decode: Decode, mode: str) -> None:
    data = encode(picture(mode=mode), "JPEG")
    assert torch.equal(decode(data), pixels(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_become_their_upper_8(decode: Decode, kind: str) -> None:
    deep = np.arange(12 * 9, dtype=np.uint16).reshape(9, 12) * 600
    found = decode(encode(Image.fromarray(deep), kind))
    assert torch.equal(found, torch.from_numpy((deep >> 8).astype(np.uint8)).expand(3, 9, 12))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_pictures_are_set_upright(decode: Decode, kind: str, orientation: int) -> None:
    image = picture()
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(image, kind, exif=exif)
    flat = Image.open(io.BytesIO(encode(image, kind)))
    flips = Image.Transpose
    turns = [flips.FLIP_LEFT_RIGHT, flips.ROTATE_180, flips.FLIP_TOP_BOTTOM, flips.TRANSPOSE]
    turns += [flips.ROTATE_270, flips.TRANSVERSE, flips.ROTATE_90]  # orientations 2 to 8
    wanted = flat.transpose(turns[orientation - 2]) if orientation > 1 else flat
    assert torch.equal(decode(data), pixels(wanted))


def test_an_animation_is_its_first_frame() -> None:
    frames = [picture(seed, "P") for seed in range(3)]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert torch.equal(decode_picture(data), pixels(Image.open(io.BytesIO(data))))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow's, of a cut TIFF
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
def test_a_cut_picture_is_an_error(decode: Decode, kind: str) -> None:
    data = encode(picture(size=(40, 40)), kind)
    assert decode(data).shape == (3, 40, 40)
    for size in (0, 1, 4, 20, len(data) // 2, len(data) * 3 // 4):
        with pytest.raises(ValueError, match="not a picture that can be decoded"):
            decode(data[:size])


def test_floats_are_refused() -> None:
    with pytest.raises(ValueError, match="pixels are floats"):
        decode_picture(encode(Image.fromarray(np.ones((4, 4), dtype=np.float32)), "TIFF"))


CLASSES = {"ant": 3, "Bee": 1, "cat-2": 4, "10": 2}


def make_folder(root: Path) -> Path:
    seed = 0
    for name, count in CLASSES.items():
        for number in range(count):
            seed += 1
            folder = root / name / ("inner" if number % 2 else "")
            folder.mkdir(parents=True, exist_ok=True)
            ending = ("jpg", "PNG", "jpeg")[number % 3]
            image = picture(seed, size=(8, 8))
            image.save(folder / f"{number}.{ending}", "PNG" if ending == "PNG" else "JPEG")
    (root / "ant" / "inner-2").mkdir()
    picture(99, size=(8, 8)).save(root / "ant" / "inner-2" / "z.png")
    (root / "ant" / "notes.txt").write_text("no picture")
    (root / "README.md").write_text("no class")
    return root


def test_samples_and_order_are_those_of_torchvision(tmp_path: Path) -> None:
    ours, theirs = lk.ImageFolder(make_folder(tmp_path)), torchvision.datasets.ImageFolder(tmp_path)
    assert ours.classes == theirs.classes == ["10", "Bee", "ant", "cat-2"]
    assert ours.class_to_idx == theirs.class_to_idx
    assert len(ours) == len(theirs) == 11
    assert ours.targets.tolist() == theirs.targets
    for index in range(len(ours)):
        image, label = theirs[index]
        assert str(ours.path(index)) == theirs.samples[index][0]
        assert equal(ours[index], (pixels(image), label))
    assert equal(ours[-1], ours[10])
    for index in (11, -12):
        with pytest.raises(IndexError, match=f"index {index} in a dataset of 11"):
            ours[index]


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    data = lk.ImageFolder(make_folder(tmp_path))
    (tmp_path / ".cache").mkdir()
    (tmp_path / "ant" / "._0.jpg").write_bytes(b"\0")
    (tmp_path / "ant" / ".inner").mkdir()
    picture().save(tmp_path / "ant" / ".inner" / "a.png")
    assert lk.ImageFolder(tmp_path).fingerprint() == data.fingerprint()


def test_a_fingerprint_tells_files_apart_and_not_where_they_lie(tmp_path: Path) -> None:
    first = lk.ImageFolder(make_folder(tmp_path / "a"))
    assert lk.ImageFolder(make_folder(tmp_path / "b")).fingerprint() == first.fingerprint()
    (tmp_path / "b" / "ant" / "0.jpg").rename(tmp_path / "b" / "ant" / "9.jpg")
    assert lk.ImageFolder(tmp_path / "b").fingerprint() != first.fingerprint()


def with_draws(image: Tensor) -> Any:
    return {"image": image, "draws": draws()}


def test_the_laws_hold(tmp_path: Path) -> None:
    make_folder(tmp_path)
    files = {bytes(lk.ImageFolder(tmp_path)[index][0].numpy().tobytes()): index for index in range(11)}
    assert len(files) == 11

    def loader(**changes: Any) -> lk.Loader:
        data = lk.ImageFolder(tmp_path, transform=with_draws)
        return lk.Loader(data, **{"batch_size": 3, "shuffle": True, **changes})

    def ids(batch: Any) -> list[int]:
        return [files[image.numpy().tobytes()] for image in batch[0]["image"]]

    testing.assert_exactly_once(loader, samples=11, worlds=[1, 2], ids=ids)
    testing.assert_resumable(loader, epochs=1, stops=[1, 4], consumers=["trainer"], ids=ids)
    testing.assert_workers_dont_matter(
        loader, workers=[0, 2], start_methods=["fork", "forkserver"], persistent=[False], epochs=1, ids=ids
    )


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    data = lk.ImageFolder(make_folder(tmp_path))
    data.path(3).write_bytes(b"\xff\xd8\xff no more")
    with pytest.raises(ValueError, match=rf"{data.path(3)}: not a picture that can be decoded"):
        data[3]
    data.path(3).unlink()
    with pytest.raises(FileNotFoundError, match=str(data.path(3))):
        data[3]


def test_folders_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder at"):
        lk.ImageFolder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no folders in"):
        lk.ImageFolder(tmp_path)
    make_folder(tmp_path)
    (tmp_path / "dog").mkdir()
    with pytest.raises(ValueError, match=r"no pictures in 1 of 5 classes of .*, the first is 'dog'"):
        lk.ImageFolder(tmp_path)
    assert lk.ImageFolder(tmp_path, allow_empty=True).classes[-1] == "dog"
    (tmp_path / "dog").rmdir()
    (tmp_path / "ant" / "again").symlink_to(tmp_path / "ant")
    with pytest.raises(ValueError, match=r"again is a link to .*, which contains it"):
        lk.ImageFolder(tmp_path)


TRANSFORM = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(6), v2.ToDtype(torch.float32, scale=True)])


def to_tensor_and_transform(image: Image.Image) -> Tensor:
    found: Tensor = TRANSFORM(v2.functional.pil_to_tensor(image))
    return found


@pytest.mark.parametrize("kind", ["ImageFolder", "FakeData"])
def test_torchvisions_datasets_and_transforms_work_as_they_are(kind: str, tmp_path: Path) -> None:
    def loader(**changes: Any) -> lk.Loader:
        data: Any = torchvision.datasets.FakeData(11, (3, 8, 8), 4, transform=to_tensor_and_transform)
        if kind == "ImageFolder":
            data = torchvision.datasets.ImageFolder(tmp_path, transform=to_tensor_and_transform)
        return lk.Loader(data, **{"batch_size": 4, "shuffle": True, **changes})

    make_folder(tmp_path)
    images, labels = next(iter(loader()))
    assert images.shape == (4, 3, 6, 6)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    testing.assert_resumable(loader, epochs=1, stops=[1, 3], consumers=["trainer"], ids=lambda batch: batch[1].tolist())
    testing.assert_workers_dont_matter(loader, workers=[0, 2], persistent=[False], epochs=2)
    testing.assert_epochs_differ(loader, epochs=2)
