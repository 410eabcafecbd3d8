"""A picture's decoder is chosen by name, is the one that a state means, and never changes in silence."""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from images_made import encode, picture
from PIL import Image

import loaderkit as lk
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.images.decoders import PictureDecoder, jpeg_decoder

HAS_TORCHCODEC = find_spec("torchcodec") is not None  # it wants the torch of its year, so not with the oldest torch
DECODERS = [name for name in get_args(PictureDecoder) if name != "torchcodec" or HAS_TORCHCODEC]
needs_torchcodec = pytest.mark.skipif(not HAS_TORCHCODEC, reason="needs torchcodec")
SIZES = [(1, 1), (2, 3), (7, 5), (17, 16), (33, 31), (100, 75)]


def jpegs() -> dict[str, bytes]:
    """JPEGs of every kind that Pillow writes, of noise, which shows each rounding."""
    rng, made = np.random.default_rng(0), {}
    for width, height in SIZES:
        for mode, channels in (("RGB", 3), ("L", 1), ("CMYK", 4)):
            noise = rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
            image = Image.fromarray(noise[:, :, 0] if channels == 1 else noise, mode)
            for sampling in ("4:4:4", "4:2:2", "4:2:0", "4:1:1") if mode == "RGB" else (None,):
                for turned, options in ((1, {}), (6, {"progressive": True}), (7, {"quality": 30})):
                    exif = Image.Exif()
                    exif[0x0112] = turned
                    more: Any = options | ({} if sampling is None else {"subsampling": sampling})
                    name = f"{width} x {height} {mode} {sampling} {turned} {options}"
                    try:
                        made[name] = encode(image, "JPEG", exif=exif, **more)
                    except OSError:  # Pillow's buffer is too small for noise of this size
                        continue
    return made


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated:DeprecationWarning")
def test_all_decoders_give_the_same_pixels_of_a_jpeg() -> None:
    """Else torchvision and torchcodec could not have one fingerprint."""
    cases = jpegs()
    assert len(cases) > 80
    for name, content in cases.items():
        wanted, *others = (decode_picture(content, decoder=decoder) for decoder in DECODERS)
        assert others
        assert all(torch.equal(other, wanted) for other in others), name


def folder(root: Path) -> Path:
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        (root / name / "1.jpg").write_bytes(encode(picture(), "JPEG"))
    return root


def shards(root: Path) -> str:
    samples = [{"jpg": np.array(picture(seed)), "cls": seed} for seed in range(4)]
    lk.write_shards(samples, root / "train", format="tar", jobs=1)
    return f"{root}/train/*.tar"


def datasets(root: Path) -> dict[str, Any]:
    """How to make each kind of data that decodes pictures, by a decoder."""
    files, tars = folder(root / "files"), shards(root)
    rows = [{"image": f"{name}/1.jpg"} for name in ("a", "b")]
    pictures = partial(lk.Pictures, lk.Patches(size=4, merge=1), placeholder=256, root=files)
    documents = [{"content": [{"type": "image", "image": "a/1.jpg"}]}]
    return {
        "folder": partial(lk.ImageFolder, files),
        "tar": partial(lk.TarDataset, tars),
        "stream": lambda **more: lk.StreamDataset([tars.replace("*", "00000")], lk.TarReader(**more)),
        "media": partial(lk.MediaDataset, rows, {"image": "image"}, root=files),
        "documents": lambda **more: lk.MultimodalDataset(documents, str.encode, pictures(**more)),
    }


KINDS = ["folder", "tar", "stream", "media", "documents"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_is_part_of_the_fingerprint_if_its_pixels_may_be_others(kind: str, tmp_path: Path) -> None:
    make = datasets(tmp_path)[kind]
    usual, *named = (make(**more).fingerprint() for more in ({}, *({"decoder": name} for name in DECODERS)))
    assert [found == usual for found in named] == [name != "pillow" for name in DECODERS]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_decoder_is_an_error(kind: str, tmp_path: Path) -> None:
    make = datasets(tmp_path)[kind]
    with pytest.raises(ValueError, match=r"decoder is 'opencv', wanted one of .*'torchvision', 'torchcodec', 'pillow'"):
        make(decoder="opencv")


def test_a_run_resumes_with_the_pixels_that_it_began_with(tmp_path: Path) -> None:
    """A state of before, which names no decoder, is of torchvision's."""
    make = datasets(tmp_path)["folder"]
    states = {name: lk.Loader(make(decoder=name)).state_dict() for name in DECODERS}
    assert "pillow" not in str(states["torchvision"])
    for saved, resumed, fits in (
        ("torchvision", None, True),
        ("torchvision", "torchcodec", True),
        ("torchvision", "pillow", False),
        ("pillow", "pillow", True),
        ("pillow", None, False),
    ):
        if resumed not in (None, *DECODERS):
            continue
        loader = lk.Loader(make(decoder=resumed))
        if fits:
            loader.load_state_dict(states[saved])
            continue
        with pytest.raises(lk.StateError, match="by pillow"):
            loader.load_state_dict(states[saved])


@pytest.fixture
def no_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torchvision have no decoders any more."""
    monkeypatch.setitem(sys.modules, "torchvision.io", None)  # importing it fails
    jpeg_decoder.cache_clear()


@pytest.fixture(autouse=True)
def forget() -> Any:
    yield
    jpeg_decoder.cache_clear()


def hide_torchcodec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)  # importing it fails
    jpeg_decoder.cache_clear()


@needs_torchcodec
def test_torchcodec_comes_first_and_torchvision_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchcodec.decoders

    asked = []
    decode_jpeg = torchcodec.decoders.decode_jpeg
    monkeypatch.setattr(
        torchcodec.decoders, "decode_jpeg", lambda *args, **more: asked.append(1) or decode_jpeg(*args, **more)
    )
    content = encode(picture(), "JPEG")
    first = decode_picture(content)
    assert asked == [1]
    assert torch.equal(decode_picture(content, decoder="torchvision"), first)
    hide_torchcodec(monkeypatch)
    assert torch.equal(decode_picture(content), first)
    assert asked == [1]


@needs_torchcodec
@pytest.mark.usefixtures("no_operators")
def test_without_torchvisions_operators_the_error_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never Pillow in silence."""
    content = encode(picture(), "JPEG")
    wanted = decode_picture(content, decoder="torchcodec")
    assert torch.equal(decode_picture(content), wanted)
    ways = r"pip install 'torchcodec>=0.16'.*decoder='torchcodec', which makes the same pixels.*decoder='pillow'"
    with pytest.raises(ImportError, match=rf"decoder='torchvision': .*{ways}"):
        decode_picture(content, decoder="torchvision")
    hide_torchcodec(monkeypatch)
    with pytest.raises(ImportError, match=rf"neither torchcodec nor torchvision decodes JPEG here.*{ways}"):
        decode_picture(content)
    with pytest.raises(ImportError, match=r"needs torchcodec: pip install 'torchcodec>=0.16'.*'torchvision'"):
        decode_picture(content, decoder="torchcodec")
    assert torch.equal(decode_picture(content, decoder="pillow"), wanted)
    assert decode_picture(encode(picture(), "PNG")).shape == wanted.shape  # Pillow's anyway


@needs_torchcodec
def test_a_torchcodec_without_pictures_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torchcodec.decoders

    jpeg_decoder.cache_clear()
    monkeypatch.delattr(torchcodec.decoders, "decode_jpeg")
    with pytest.raises(ImportError, match=r"found torchcodec .*, wanted 0.16 or later"):
        lk.ImageFolder(folder(tmp_path), decoder="torchcodec")


def test_the_decoder_does_not_change_what_is_no_jpeg() -> None:
    deep = np.arange(108, dtype=np.uint16).reshape(9, 12) * 600
    for content in (encode(Image.fromarray(deep), "PNG"), encode(picture(), "WEBP"), encode(picture(), "BMP")):
        found = [decode_picture(content, decoder=decoder) for decoder in DECODERS]
        assert all(torch.equal(each, found[0]) for each in found)
