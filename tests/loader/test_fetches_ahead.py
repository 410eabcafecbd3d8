"""A wrapper that fetches ahead of its user moves the Loader's state ahead; a DeviceLoader in its place does not."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import loaderkit as lk

COUNT, SIZE = 40, 4
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PICTURES = np.random.default_rng(0).integers(0, 256, (COUNT, 3, 5, 6), dtype=np.uint8)


class PrefetchLoader:
    """Does what timm's does: takes the next batch before it yields one, and normalises pictures."""

    def __init__(self, loader: Iterable[Any], erase: Callable[[Any], Any] | None = None) -> None:
        self.loader, self.erase = loader, erase

    def __iter__(self) -> Iterator[Any]:
        mean, std = (torch.tensor([255 * one for one in each]).view(1, 3, 1, 1) for each in (MEAN, STD))
        waiting = None
        for images, labels in self.loader:
            images = images.float().sub_(mean).div_(std)
            images = images if self.erase is None else self.erase(images)
            if waiting is not None:
                yield waiting
            waiting = images, labels
        if waiting is not None:
            yield waiting


def timms(loader: Any) -> Any:
    timm = pytest.importorskip("timm.data.loader")
    return timm.PrefetchLoader(loader, mean=MEAN, std=STD, device=torch.device("cpu"))


def erase(images: torch.Tensor) -> torch.Tensor:
    """Stands for timm's RandomErasing, which draws from `random` and from torch."""
    row = random.randrange(5)
    images[:, :, row] = torch.randn(images[:, :, row].shape)
    return images


def normalised_and_erased(batch: Any) -> Any:
    images, labels = lk.Normalize(MEAN, STD)(batch)
    return erase(images), labels


def make_loader(**settings: Any) -> lk.Loader:
    data = [(picture, number) for number, picture in enumerate(PICTURES)]
    return lk.Loader(data, SIZE, shuffle=True, seed=2, **settings)


def resumed(wrap: Callable[[Any], Any], step: int) -> list[int]:
    """Return the samples of a run whose state is saved in a training step, and of the run that resumes from it."""
    loader, seen = make_loader(), []
    for number, (_, labels) in enumerate(wrap(loader), 1):
        seen += labels.tolist()
        if number == step:
            state = loader.state_dict()
            break
    loader = make_loader()
    loader.load_state_dict(state)
    return seen + [label for _, labels in wrap(loader) for label in labels.tolist()]


@pytest.mark.parametrize("wrap", [PrefetchLoader, timms], ids=["stand-in", "timm"])
@pytest.mark.parametrize("step", [1, 3, 8])
def test_a_state_under_a_wrapper_that_fetches_ahead_skips_a_batch(wrap: Any, step: int) -> None:
    """What the page on moving says, and why a DeviceLoader is needed."""
    assert len(set(resumed(wrap, step))) == COUNT - SIZE


@pytest.mark.parametrize("step", [1, 3, 9])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_device_loader_in_its_place_skips_none(step: int, depth: int) -> None:
    def wrap(loader: Any) -> Any:
        return lk.DeviceLoader(loader, "cpu", depth=depth, transform=lk.Normalize(MEAN, STD))

    seen = resumed(wrap, step)
    assert len(seen) == COUNT
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("wrap", [PrefetchLoader, timms], ids=["stand-in", "timm"])
def test_a_device_loader_gives_the_same_batches(wrap: Any) -> None:
    before = list(wrap(make_loader()))
    after = list(lk.DeviceLoader(make_loader(), "cpu", transform=lk.Normalize(MEAN, STD)))
    assert len(before) == len(after) == COUNT // SIZE
    for (images, labels), (same, numbers) in zip(before, after, strict=True):
        assert torch.equal(labels, numbers)
        torch.testing.assert_close(same, images, rtol=0, atol=1e-5)


def test_erasing_on_the_device_resumes_bit_for_bit() -> None:
    """As a wrapper's own step it draws from the trainer's generators; as a transform, from the batch's."""
    whole = [images for images, _ in lk.DeviceLoader(make_loader(), "cpu", transform=normalised_and_erased)]
    assert len({images.sum().item() for images in whole}) == len(whole)
    first = lk.DeviceLoader(make_loader(), "cpu", transform=normalised_and_erased)
    batches = iter(first)
    done = [next(batches)[0] for _ in range(3)]
    second = lk.DeviceLoader(make_loader(num_workers=2), "cpu", transform=normalised_and_erased)
    second.load_state_dict(first.state_dict())
    assert all(map(torch.equal, done + [images for images, _ in second], whole))
