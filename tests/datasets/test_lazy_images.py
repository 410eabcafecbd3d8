"""Pictures that are decoded by region: what is decoded whole has the same pixels, what is scaled has nearly the same."""

import io
import pickle
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import loaderkit as lk
from loaderkit.datasets.images.decode import decode_picture

simplejpeg = pytest.importorskip("simplejpeg")
HEIGHT, WIDTH = 301, 402


def pixels(height: int = HEIGHT, width: int = WIDTH) -> Any:
    """A smooth picture with some detail, as photographs are."""
    across, down = np.meshgrid(np.linspace(0, 9, width), np.linspace(0, 7, height))
    waves = [np.sin(across * (1 + channel) + down) + np.sin(down * down / (2 + channel)) for channel in range(3)]
    noise = np.random.default_rng(0).normal(0, 2, (height, width, 3))
    return np.clip(np.stack(waves, axis=2) * 60 + 128 + noise, 0, 255).astype(np.uint8)


def saved(kind: str = "JPEG", mode: str = "RGB", orientation: int = 1, **options: Any) -> bytes:
    file, exif = io.BytesIO(), Image.Exif()
    if orientation > 1:
        exif[0x0112] = orientation
    Image.fromarray(pixels()).convert(mode).save(file, kind, exif=exif.tobytes(), **options)
    return file.getvalue()


FILES: dict[str, bytes] = {
    "JPEG": saved(),
    "4:4:4": saved(subsampling=0),
    "4:2:2": saved(subsampling=1),
    "progressive": saved(progressive=True),
    "grey": saved(mode="L"),
    "CMYK": saved(mode="CMYK"),
    "PNG": saved("PNG"),
    **{f"turned {number}": saved(orientation=number) for number in range(2, 9)},
}
of_each_file = pytest.mark.parametrize("data", FILES.values(), ids=FILES)


@of_each_file
def test_a_whole_picture_has_the_pixels_and_size_of_the_other_decoder(data: bytes) -> None:
    wanted = decode_picture(data)
    lazy = lk.LazyImage(data)
    assert (lazy.shape, lazy.dtype, lazy.device, len(lazy), lazy.ndim) == (
        wanted.shape,
        torch.uint8,
        torch.device("cpu"),
        3,
        3,
    )
    assert torch.equal(lazy.decode(), wanted)
    assert type(lazy.decode()) is torch.Tensor


WHOLE: dict[str, Callable[[], Any]] = {
    "crop": lambda: v2.RandomCrop(100),
    "crop beyond the edge": lambda: v2.RandomCrop(500, pad_if_needed=True),
    "center": lambda: v2.CenterCrop((90, 101)),
    "large center": lambda: v2.CenterCrop(600),
    "crop of a crop": lambda: v2.Compose([v2.CenterCrop(201), v2.RandomCrop(50)]),
    "small scale": lambda: v2.RandomResizedCrop(200),
    "larger": lambda: v2.Resize(500),
    "nearest": lambda: v2.Resize((10, 20), interpolation=v2.InterpolationMode.NEAREST),
    "no antialias": lambda: v2.Resize((10, 20), antialias=False),
    "longest": lambda: v2.Resize(20, max_size=22),
    "flip first": lambda: v2.Compose([v2.RandomHorizontalFlip(1), v2.RandomResizedCrop(20)]),
    "pad": lambda: v2.Pad(3),
    "five": lambda: v2.Compose([v2.FiveCrop(50), lambda five: torch.stack(list(five))]),
    "colours": lambda: v2.RandAugment(),
    "floats": lambda: v2.ToDtype(torch.float32, scale=True),
    "to Pillow": lambda: v2.Compose([v2.ToPILImage(), v2.PILToTensor()]),
    "pure": lambda: v2.ToPureTensor(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_transform_at_full_scale_gives_the_same_pixels(name: str) -> None:
    data, transform = FILES["turned 6"], WHOLE[name]()
    for seed in range(3):
        torch.manual_seed(seed)
        found = transform(lk.LazyImage(data))
        torch.manual_seed(seed)
        wanted = transform(tv_tensors.Image(decode_picture(data)))
        assert torch.equal(torch.stack([found])[0], torch.stack([wanted])[0])


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: x + 1,
    "from the right": lambda x: 2 * x,
    "index": lambda x: x[1, :5],
    "stack": lambda x: torch.stack([x, x]),
    "cat": lambda x: torch.cat([x, x], dim=1),
    "float mean": lambda x: x.float().mean(),
    "numpy": lambda x: torch.from_numpy(x.numpy()),
    "asarray": lambda x: torch.from_numpy(np.asarray(x).copy()),
    "list": lambda x: torch.tensor(x[0, :2].tolist()),
    "as_subclass": lambda x: x.as_subclass(torch.Tensor),
    "permute": lambda x: x.permute(1, 2, 0).contiguous(),
    "to": lambda x: x.to(torch.float64),
    "clone": lambda x: x.clone(),
    "in place": lambda x: x.add_(1),
    "assigned": lambda x: (x.__setitem__((0, 0), 7), x)[1] + 0,
    "equal": lambda x: torch.tensor(torch.equal(x, x)),
    "where": lambda x: torch.where(x > 100, x, torch.zeros_like(x)),
    "default collate": lambda x: torch.utils.data.default_collate([x, x]),
    "deep copy": lambda x: __import__("copy").deepcopy(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_torch_gets_the_pixels(name: str) -> None:
    """A picture that is not decoded has no data, so what would pass over it fails."""
    data = FILES["JPEG"]
    found, wanted = FUNCTIONS[name](lk.LazyImage(data)), FUNCTIONS[name](decode_picture(data))
    assert torch.equal(torch.as_tensor(found), wanted)
    assert not isinstance(found, lk.LazyImage)


def test_what_is_changed_in_place_stays_changed() -> None:
    lazy = lk.LazyImage(FILES["JPEG"])
    lazy.add_(1)
    assert torch.equal(lazy.decode(), decode_picture(FILES["JPEG"]) + 1)
    assert torch.equal(torch.as_tensor(pickle.loads(pickle.dumps(lazy))), decode_picture(FILES["JPEG"]) + 1)


@of_each_file
@pytest.mark.parametrize("size", [20, (40, 60), 150])
def test_a_scaled_crop_is_nearly_that_of_the_whole_picture(data: bytes, size: Any) -> None:
    """The box is drawn from the same numbers, also for pictures that are turned."""
    transform, errors = v2.RandomResizedCrop(size), []
    for seed in range(12):
        torch.manual_seed(seed)
        found = transform(lk.LazyImage(data))
        torch.manual_seed(seed)
        wanted = transform(tv_tensors.Image(decode_picture(data)))
        assert type(found) is tv_tensors.Image
        assert found.shape == wanted.shape
        errors.append(float((found.float() - wanted.float()).abs().mean()))
    assert max(errors) < 12  # of a picture that is turned wrongly, 60
    assert np.mean(errors) < 6  # most of it are edges that are rounded to a scaled pixel
    assert size != 150 or np.mean(errors) < 2


@pytest.mark.parametrize(
    ("box", "size", "scale"),
    [
        ((0, 0, 300, 400), (40, 50), 4),
        ((0, 0, 300, 400), (37, 50), 8),
        ((0, 0, 300, 400), (75, 100), 4),
        ((0, 0, 300, 400), (76, 100), 2),
        ((0, 0, 300, 400), (150, 200), 2),
        ((0, 0, 300, 400), (151, 20), 1),
        ((90, 10, 64, 64), (32, 32), 2),
        ((90, 10, 63, 64), (32, 32), 1),
    ],
)
def test_the_smallest_scale_is_decoded_that_has_the_resolution(
    box: Any, size: Any, scale: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []
    decode = simplejpeg.decode_jpeg

    def spy(*args: Any, **options: Any) -> Any:
        found = decode(*args, **options)
        shapes.append(found.shape[:2])
        return found

    monkeypatch.setattr(simplejpeg, "decode_jpeg", spy)
    for resize in (
        lambda picture: functional.resized_crop(picture, *box, list(size), antialias=True),
        lambda picture: functional.resize(functional.crop(picture, *box), list(size)),
    ):
        assert resize(lk.LazyImage(FILES["JPEG"])).shape == (3, *size)
        assert shapes.pop() == (-(-HEIGHT // scale), -(-WIDTH // scale))
    assert not shapes


@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 300), (300, 2), (17, 33)])
def test_small_and_narrow_pictures_keep_their_size(height: int, width: int) -> None:
    file = io.BytesIO()
    Image.fromarray(pixels(height, width)).save(file, "JPEG")
    for size in ((1, 1), (3, 2), (9, 40)):
        lazy = functional.resize(lk.LazyImage(file.getvalue()), list(size))
        assert lazy.shape == (3, *size)
        part = functional.resized_crop(lk.LazyImage(file.getvalue()), height - 1, width - 1, 1, 1, list(size))
        assert part.shape == (3, *size)


def test_a_picture_in_a_sample_with_boxes_is_transformed_with_them() -> None:
    boxes = tv_tensors.BoundingBoxes([[10, 20, 30, 40]], format="XYXY", canvas_size=(HEIGHT, WIDTH))  # type: ignore[call-overload]
    sample = {"image": lk.LazyImage(FILES["JPEG"]), "boxes": boxes, "label": 3}
    found = v2.Resize((50, 67))(sample)
    assert found["image"].shape == (3, 50, 67)
    assert found["boxes"].canvas_size == (50, 67)


def test_a_pickle_has_the_file_and_not_the_pixels() -> None:
    lazy = functional.crop(lk.LazyImage(FILES["JPEG"]), 10, 20, 100, 200)
    text = pickle.dumps(lazy)
    assert len(text) < len(FILES["JPEG"]) + 1000 < lazy.numel()
    again = pickle.loads(text)
    assert isinstance(again, lk.LazyImage)
    assert repr(again) == f"LazyImage(100 x 200 of 301 x 402, {len(FILES['JPEG']):,} bytes)"
    assert torch.equal(again.decode(), decode_picture(FILES["JPEG"])[:, 10:110, 20:220])


def test_a_picture_that_is_too_large_is_refused_before_it_is_decoded() -> None:
    for data in (FILES["JPEG"], FILES["PNG"]):
        with pytest.raises(ValueError, match=r"a\.jpg: .*402 x 301 pixels, wanted at most max_pixels=1,000"):
            lk.LazyImage(data, max_pixels=1000, name="a.jpg")
    with pytest.raises(ValueError, match="max_pixels is 0, wanted a number of at least 1"):
        lk.LazyImage(FILES["JPEG"], max_pixels=0)


@pytest.mark.parametrize("kept", [0, 3, 100, 0.5])
def test_a_damaged_picture_is_named(kept: float) -> None:
    data = FILES["JPEG"]
    cut = data[: int(kept * len(data)) if isinstance(kept, float) else kept]
    with pytest.raises(ValueError, match=r"^a\.jpg: not a picture that can be decoded"):
        v2.Resize(50)(lk.LazyImage(cut, name="a.jpg"))


def test_a_missing_decoder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    folder = folder_of(tmp_path, 1)
    for make in (lambda: lk.LazyImage(FILES["JPEG"]), lambda: lk.ImageFolder(folder, lazy=True)):
        with pytest.raises(ImportError, match=r"need simplejpeg: pip install '.\[photographs\]'"):
            make()


def folder_of(root: Path, count: int = 6) -> Path:
    for name in ("a", "b"):
        (root / name).mkdir(exist_ok=True)
        for number in range(count):
            (root / name / f"{number}.jpg").write_bytes(list(FILES.values())[number % 4])
    return root


def test_a_folder_of_lazy_pictures_resumes_exactly_with_any_workers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    transform = v2.Compose([v2.RandomResizedCrop(40), v2.RandomHorizontalFlip()])

    def loader(workers: int = 0) -> lk.Loader:
        data = lk.ImageFolder(folder, transform=transform, lazy=True)
        return lk.Loader(data, 4, shuffle=True, num_workers=workers)

    whole = [(pictures, labels.tolist()) for pictures, labels in loader()]
    assert [pictures.shape for pictures, _ in whole] == [(4, 3, 40, 40)] * 3
    first = loader()
    next(iter(first))
    again = loader(2)
    again.load_state_dict(first.state_dict())
    rest = list(again)
    assert len(rest) == 2
    for (pictures, labels), (wanted, wanted_labels) in zip(rest, whole[1:], strict=True):
        assert torch.equal(pictures, wanted)
        assert labels.tolist() == wanted_labels


def test_a_folder_without_a_transform_gives_whole_pictures_and_a_state_names_the_decoder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 2)
    plain, lazy = lk.ImageFolder(folder), lk.ImageFolder(folder, lazy=True)
    cropping = lk.ImageFolder(folder, transform=v2.CenterCrop(50), lazy=True)
    for number in range(4):
        assert torch.equal(lazy[number][0], plain[number][0])
        assert type(lazy[number][0]) is type(cropping[number][0]) is torch.Tensor
    assert cropping[0][0].shape == (3, 50, 50)
    with pytest.raises(lk.StateError, match="lazy-1"):
        lk.Loader(lazy).load_state_dict(lk.Loader(plain).state_dict())


def test_a_tar_shard_gives_lazy_pictures_by_its_decoder(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(4):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size = len(FILES["JPEG"])
            archive.addfile(member, io.BytesIO(FILES["JPEG"]))
    small = v2.Resize((20, 30))
    data = lk.TarDataset(
        str(tmp_path / "*.tar"),
        decode=lk.DECODERS | {"jpg": lk.LazyImage},
        transform=lambda sample: small(sample["jpg"]),
    )
    assert next(iter(lk.Loader(data, 4))).shape == (4, 3, 20, 30)
