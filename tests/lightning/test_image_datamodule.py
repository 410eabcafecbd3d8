"""ImageDataModule: folders, tar shards and torchvision's datasets; uint8 to the device, exact resumes."""

import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import datamodule_runs as runs
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.transforms import v2

import loaderkit as lk

CLASSES = ["eight", "five", "four"]
DIGITS = {"eight": 8, "five": 5, "four": 4}
augment = v2.RandomAffine(20, (0.2, 0.2))


def pictures(name: str, count: int) -> list[Any]:
    digits = load_digits()
    return list((digits.images[digits.target == DIGITS[name]][:count] * 15).astype(np.uint8))


def write_folder(root: Path, count: int = 12, classes: list[str] = CLASSES) -> Path:
    for name in classes:
        (root / name).mkdir(parents=True)
        for number, picture in enumerate(pictures(name, count)):
            Image.fromarray(picture).save(root / name / f"{number}.png")
    return root


def write_tars(folder: Path, *, labels: bool = True, count: int = 12) -> str:
    folder.mkdir(exist_ok=True)
    for part in range(2):
        with tarfile.open(folder / f"{part}.tar", "w") as tar:
            for label, name in enumerate(CLASSES):
                for number, picture in list(enumerate(pictures(name, count)))[part::2]:
                    Image.fromarray(picture).save(folder / "picture.png")
                    tar.add(folder / "picture.png", f"{name}-{number}.png")
                    (folder / "picture.png").unlink()
                    if labels:
                        (folder / "label").write_text(str(label))
                        tar.add(folder / "label", f"{name}-{number}.cls")
                        (folder / "label").unlink()
    return str(folder / "*.tar")


def numbers(batch: Any) -> torch.Tensor:
    return batch[0].flatten(1)


def model() -> runs.Recorder:
    return runs.Recorder(numbers, 192)


def first(loader: Any) -> Any:
    return next(iter(loader))


@pytest.mark.parametrize("source", ["folder", "tar"])
def test_resume_equals_the_uninterrupted_run(source: str, tmp_path: Path) -> None:
    where = write_folder(tmp_path / "train") if source == "folder" else write_tars(tmp_path / "train")

    def data(workers: int) -> lk.ImageDataModule:
        config = lk.LoaderConfig(batch_size=5, num_workers=workers, seed=2)
        return lk.ImageDataModule(train=where, train_transform=augment, mean=(0.5, 0.5, 0.5), loader=config)

    checkpoint = runs.check_resumes(data, model, tmp_path, stops=[3, 8, 11])
    assert len(str(torch.load(checkpoint, weights_only=True)["ImageDataModule"])) < 1024


def test_a_folders_parts_are_found_and_its_classes_known_without_setup(tmp_path: Path) -> None:
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "val", count=3)
    data = lk.ImageDataModule(tmp_path, train_transform=augment, loader=lk.LoaderConfig(batch_size=4))
    assert (data.classes, data.num_classes) == (CLASSES, 3)
    data.prepare_data()
    data.setup("fit")
    assert len(data.train_dataloader().dataset) == 36
    images, labels = first(data.val_dataloader())
    assert (images.dtype, tuple(images.shape), labels.tolist()) == (torch.uint8, (4, 3, 8, 8), [0, 0, 0, 1])
    with pytest.raises(ValueError, match="there is none"):
        data.test_dataloader()
    whole = lk.ImageDataModule(tmp_path / "train")
    whole.setup("fit")
    assert len(whole.train_dataloader().dataset) == 36


def test_folders_and_tar_shards_have_the_same_pictures_and_labels(tmp_path: Path) -> None:
    folder, tars = write_folder(tmp_path / "folder"), write_tars(tmp_path / "tars")
    config = lk.LoaderConfig(batch_size=36)
    found = [lk.ImageDataModule(val=where, loader=config) for where in (folder, tars, tmp_path / "tars")]
    batches = []
    for data in found:
        data.prepare_data()
        images, labels = first(data.val_dataloader())
        order = sorted(range(36), key=lambda row: images[row].flatten().tolist())
        batches.append((images[order], labels[order]))
    for images, labels in batches[1:]:
        assert torch.equal(images, batches[0][0])
        assert torch.equal(labels, batches[0][1])


def test_pictures_are_normalised_after_the_transfer(tmp_path: Path) -> None:
    data = lk.ImageDataModule(write_folder(tmp_path), mean=(0.1, 0.2, 0.3), std=(1, 2, 4))
    batch = first(data.train_dataloader())
    images, labels = data.on_after_batch_transfer(batch, 0)
    assert (batch[0].dtype, images.dtype) == (torch.uint8, torch.float32)
    wanted = v2.functional.normalize(v2.functional.to_dtype(batch[0], scale=True), [0.1, 0.2, 0.3], [1, 2, 4])
    torch.testing.assert_close(images, wanted)
    assert labels is batch[1]
    plain = lk.ImageDataModule(tmp_path)
    assert plain.to_input(batch[0]).max() <= 1
    ready = torch.rand(1, 3, 2, 2)
    assert plain.to_input(ready) is ready


class Digits(NamedTuple):
    """A batch of another collate."""

    pictures: torch.Tensor
    labels: torch.Tensor
    names: list[str]


def test_a_batch_keeps_its_type_when_its_pictures_are_normalised(tmp_path: Path) -> None:
    data = lk.ImageDataModule(write_folder(tmp_path))
    given = torch.full((2, 3, 4, 4), 255, dtype=torch.uint8), torch.tensor([0, 1]), ["a", "b"]
    for batch in (Digits(*given), tuple(given), list(given)):
        found = data.on_after_batch_transfer(batch, 0)
        assert type(found) is type(batch)
        assert torch.equal(found[0], torch.ones(2, 3, 4, 4))
        assert found[1:] == batch[1:]
    assert torch.equal(data.on_after_batch_transfer(given[0], 0), torch.ones(2, 3, 4, 4))


@pytest.mark.parametrize("size", [(8, 8), (5, 9)])
def test_pictures_of_any_shape_get_one_size(size: tuple[int, int], tmp_path: Path) -> None:
    """Scaled until they cover it, then cut: nothing is padded."""
    (tmp_path / "one").mkdir()
    for number, shape in enumerate([(10, 30), (30, 10), (7, 7), (3, 100)]):
        Image.fromarray(np.full((*shape, 3), 200, np.uint8)).save(tmp_path / "one" / f"{number}.png")
    images, _ = first(lk.ImageDataModule(tmp_path, size=size, loader=lk.LoaderConfig(batch_size=4)).train_dataloader())
    assert (images.dtype, tuple(images.shape), images.unique().tolist()) == (torch.uint8, (4, 3, *size), [200])


def test_torchvisions_datasets_by_name() -> None:
    data = lk.ImageDataModule(
        "nowhere",
        dataset="FakeData",
        options={"size": 10, "image_size": (3, 12, 9), "num_classes": 4},
        classes=list("abcd"),
        size=6,
        loader=lk.LoaderConfig(batch_size=10, shuffle=False),
    )
    data.prepare_data()
    data.setup("fit")
    images, labels = first(data.train_dataloader())
    assert (images.dtype, tuple(images.shape)) == (torch.uint8, (10, 3, 6, 6))
    assert labels.max() < data.num_classes
    assert data.classes == list("abcd")
    with pytest.raises(ValueError, match="there is none"):
        data.val_dataloader()


def test_torchvisions_images_folder_is_ours(tmp_path: Path) -> None:
    write_folder(tmp_path)
    data = lk.ImageDataModule(tmp_path, dataset="ImageFolder", loader=lk.LoaderConfig(batch_size=9, shuffle=False))
    assert data.classes == CLASSES
    ours = lk.ImageDataModule(tmp_path, loader=lk.LoaderConfig(batch_size=9, shuffle=False))
    assert torch.equal(first(data.train_dataloader())[0], first(ours.train_dataloader())[0])


def test_predictions_need_no_labels(tmp_path: Path) -> None:
    data = lk.ImageDataModule(predict=write_tars(tmp_path, labels=False), loader=lk.LoaderConfig(batch_size=4))
    data.prepare_data()
    images = data.on_after_batch_transfer(first(data.predict_dataloader()), 0)
    assert (images.dtype, tuple(images.shape)) == (torch.float32, (4, 3, 8, 8))
    missing = lk.ImageDataModule(val=str(tmp_path / "*.tar"))
    with pytest.raises(ValueError, match=r"sample 'eight-0' has the files \['png'\], wanted one picture and a label"):
        first(missing.val_dataloader())


def test_what_is_missing_or_contradictory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder at .*nowhere, wanted one with train/"):
        lk.ImageDataModule(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no folders in .*, wanted one for each class, or tar shards"):
        lk.ImageDataModule(tmp_path).classes  # noqa: B018
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "val", classes=["five", "four"])
    other = lk.ImageDataModule(tmp_path)
    with pytest.raises(ValueError, match=r"val has the classes \['five', 'four'\], wanted \['eight', 'five', 'four'\]"):
        other.setup("fit")
    (tmp_path / "val" / "eight").mkdir()
    lk.ImageDataModule(tmp_path).setup("fit")
    with pytest.raises(ValueError, match=r"found root=None and \[\], wanted either root, or stages"):
        lk.ImageDataModule()
    with pytest.raises(ValueError, match=r"found root='x' and \['val'\], wanted either root, or stages"):
        lk.ImageDataModule("x", val="y")
    with pytest.raises(ValueError, match="dataset='CIFAR10' needs root=, and takes no train="):
        lk.ImageDataModule(dataset="CIFAR10", train="y")
    with pytest.raises(ValueError, match="torchvision has no dataset 'CIFAR11', it has "):
        lk.ImageDataModule("x", dataset="CIFAR11")
    with pytest.raises(FileNotFoundError, match=r"torchvision's CIFAR10 is not in 'x': .*download=True"):
        lk.ImageDataModule("x", dataset="CIFAR10").setup("fit")
    with pytest.raises(ValueError, match=r"does not name its classes. Give classes="):
        lk.ImageDataModule(train=write_tars(tmp_path / "tars")).classes  # noqa: B018
