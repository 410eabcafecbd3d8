"""The augmentations of one library under three loaders, for `fields.py`: `python benchmarks/lib/field_cases.py LIBRARY FOLDER`.

Each run is a process that `seed_everything` has seeded: it makes the data and reads all samples, which are equal, for two epochs. So what
differs is what an augmentation drew.
"""

import argparse
import hashlib
import json
import os
import pickle
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

import loaderkit as lk
from loaderkit.seeding.private import private_generators

SAMPLES, EPOCHS, BATCH, WORKERS = 32, 2, 4, 2
KILLED_AFTER = 11  # batches: in the middle of the second epoch
COST_ROUNDS, COST_S = 15, 0.2


def digest(value: Any) -> int:
    """Return 63 bits that differ if two samples do."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    content = np.ascontiguousarray(value).tobytes() if isinstance(value, np.ndarray) else pickle.dumps(value)
    return int.from_bytes(hashlib.md5(content).digest()[:8], "little") >> 1


@dataclass
class Repeated:
    """One sample many times, each augmented, as its digest."""

    augment: Callable[[], Any]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return digest(self.augment())


@dataclass
class First:
    """The first sample of a dataset, in an attribute: MONAI's DataLoader seeds what attributes hold, and no closures."""

    data: Any

    def __call__(self) -> Any:
        return np.asarray(self.data[0])


@dataclass
class Rows:
    """A collate function that augments a whole batch, as a digest of each row."""

    augment: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> torch.Tensor:
        return torch.tensor([digest(row) for row in self.augment(samples)])


@dataclass
class Data:
    """What loaders read. Without `collate` they stack the samples themselves."""

    dataset: Any
    collate: Any = None

    def sample(self) -> None:
        """Make one sample, as its cost counts."""
        sample = self.dataset[0]
        if self.collate is not None:
            self.collate([sample])


@dataclass(frozen=True, kw_only=True)
class Case:
    """A library with its augmentations.

    Args:
        library: The module that tells its version.
        make: Makes the data.
        own: Makes the library's own loader, if it has one; else torch's DataLoader is used.
        own_name: What it is called.
        setting: How its generators are made, in words.
    """

    library: str
    make: Callable[[], Data]
    own: Callable[[Data], Iterable[Any]] | None = None
    own_name: str = "DataLoader"
    setting: str = ""


def monai(*, determinism: bool) -> Data:
    from monai import transforms as t
    from monai.data import Dataset
    from monai.utils import set_determinism

    set_determinism(0 if determinism else None)
    augment = t.Compose(
        [
            t.RandFlip(prob=0.5, spatial_axis=0),
            t.RandRotate90(prob=0.5),
            t.RandGaussianNoise(prob=1),
            t.RandScaleIntensity(0.1, prob=0.5),
            t.RandShiftIntensity(0.1, prob=0.5),
            t.RandAdjustContrast(prob=0.5),
            t.RandSpatialCrop((16, 16, 16), random_size=False),
        ]
    )
    return Data(Repeated(First(Dataset([np.random.default_rng(0).random((1, 24, 24, 24), np.float32)], augment))))


def monai_loader(data: Data) -> Iterable[Any]:
    from monai.data import DataLoader as Loader

    made: Iterable[Any] = Loader(data.dataset, batch_size=BATCH, num_workers=WORKERS)
    return made


def picture() -> Any:
    return np.random.default_rng(0).integers(0, 255, (96, 96, 3), np.uint8)


def albumentations(**settings: Any) -> Data:
    import albumentations

    augment = albumentations.Compose(
        [
            albumentations.GaussNoise(p=1),
            albumentations.HorizontalFlip(p=0.5),
            albumentations.RandomBrightnessContrast(p=1),
            albumentations.RandomCrop(64, 64),
        ],
        **settings,
    )
    image = picture()
    return Data(Repeated(lambda: augment(image=image)["image"]))


def collator(*, seed: int | None) -> Data:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    words = {name: number for number, name in enumerate(["[PAD]", "[UNK]", "[MASK]", *map(str, range(500))])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")),
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
    )
    masks = DataCollatorForLanguageModeling(tokenizer, seed=seed)
    sample = {"input_ids": list(range(3, 131))}
    return Data([sample] * SAMPLES, Rows(lambda samples: masks(samples)["input_ids"]))


def braindecode(*, random_state: int | None) -> Data:
    from braindecode.augmentation import Compose, FTSurrogate, GaussianNoise

    augment = Compose([GaussianNoise(1.0, random_state=random_state), FTSurrogate(0.5, random_state=random_state)])
    signals, label = torch.randn(1, 8, 256, generator=torch.Generator().manual_seed(0)), torch.zeros(1)
    data = Data(Repeated(lambda: augment(signals, label)[0]))
    data.dataset.parts = (signals[0], 0), augment
    return data


def augmented_data_loader(data: Data) -> Iterable[Any]:
    from braindecode.augmentation import AugmentedDataLoader

    sample, augment = data.dataset.parts
    loader = AugmentedDataLoader([sample] * SAMPLES, augment, batch_size=BATCH, num_workers=WORKERS)
    return Again(loader, lambda batch: [digest(signal) for signal in batch[0]])


@dataclass
class Again:
    """A loader whose batches become something else."""

    loader: Iterable[Any]
    to: Callable[[Any], Any]

    def __iter__(self) -> Iterator[Any]:
        return map(self.to, self.loader)


def lhotse() -> Data:
    import io

    import soundfile
    from lhotse import CutSet, MonoCut, Recording
    from lhotse.dataset import CutMix, PerturbSpeed, PerturbVolume

    def cut(name: str, seed: int) -> Any:
        file = io.BytesIO()
        soundfile.write(file, np.random.default_rng(seed).normal(0, 0.1, 8_000), 8_000, "FLOAT", format="WAV")
        return Recording.from_bytes(file.getvalue(), name).to_cut()

    speech, noise = cut("speech", 1), CutSet.from_cuts([cut("noise", 2)])
    assert isinstance(speech, MonoCut)
    steps = [PerturbSpeed([0.9, 1.1], p=0.5), PerturbVolume(p=1), CutMix(noise, p=0.9, preserve_id=True)]

    def augment() -> Any:
        cuts = CutSet.from_cuts([speech])
        for step in steps:
            cuts = step(cuts)
        return next(iter(cuts)).load_audio()

    return Data(Repeated(augment))


def lhotse_loader(data: Data) -> Iterable[Any]:
    from lhotse.dataset.dataloading import make_worker_init_fn

    return DataLoader(data.dataset, BATCH, num_workers=WORKERS, worker_init_fn=make_worker_init_fn(seed=0))


def kornia() -> Data:
    from kornia import augmentation as k

    augment = k.AugmentationSequential(
        k.RandomAffine(20.0, p=1.0), k.ColorJitter(0.2, 0.2, 0.2, 0.1, p=0.8), k.RandomHorizontalFlip()
    )
    image = torch.from_numpy(picture()).permute(2, 0, 1)[None] / 255
    return Data(Repeated(lambda: augment(image)))


def torchio() -> Data:
    import torchio

    augment = torchio.Compose([torchio.RandomAffine(), torchio.RandomNoise(), torchio.RandomFlip()])
    volume = torch.randn(1, 24, 24, 24, generator=torch.Generator().manual_seed(0))
    return Data(Repeated(lambda: augment(torchio.Subject(image=torchio.ScalarImage(tensor=volume))).image.data))


def timm() -> Data:
    from PIL import Image
    from timm.data import create_transform

    augment = create_transform(
        64, is_training=True, auto_augment="rand-m5-mstd0.5-inc1", re_prob=0.5, re_mode="pixel", color_jitter=0.4
    )
    image = Image.fromarray(picture())
    return Data(Repeated(lambda: augment(image)))


def torch_geometric() -> Data:
    from torch_geometric.data import Data as Graph
    from torch_geometric.transforms import Compose, RandomJitter, RandomRotate

    augment = Compose([RandomJitter(0.1), RandomRotate(30, 2)])
    places = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    edges = torch.randint(0, 50, (2, 200), generator=torch.Generator().manual_seed(0))
    return Data(Repeated(lambda: augment(Graph(pos=places, edge_index=edges)).pos))


def graph_loader(data: Data) -> Iterable[Any]:
    from torch_geometric.loader import DataLoader as Loader

    made: Iterable[Any] = Loader(data.dataset, BATCH, num_workers=WORKERS)
    return made


def pytorch_forecasting() -> Data:
    import pandas as pd
    from pytorch_forecasting import TimeSeriesDataSet

    steps = 100_000  # so that few draws of a length are equal
    table = pd.DataFrame({"time": range(steps), "group": "a", "value": np.random.default_rng(0).normal(size=steps)})
    series = TimeSeriesDataSet(
        table,
        "time",
        "value",
        ["group"],
        min_encoder_length=1_000,
        max_encoder_length=steps - 2_000,
        min_prediction_length=1,
        max_prediction_length=1_000,
        time_varying_unknown_reals=["value"],
        randomize_length=(1.0, 1.0),  # evenly: by default most lengths are the least or the most
    )
    return Data(Repeated(lambda: series[len(series) - 1][0]["x_cont"]))


# albumentationsx tells its usage in a thread. A worker that is forked meanwhile can wait for OpenSSL's lock for ever: telemetry=False.
CASES = {
    "monai": Case(
        library="monai", make=lambda: monai(determinism=False), own=monai_loader, own_name="monai.data.DataLoader"
    ),
    "monai-determinism": Case(
        library="monai",
        make=lambda: monai(determinism=True),
        own=monai_loader,
        own_name="monai.data.DataLoader",
        setting="set_determinism(0)",
    ),
    "albumentations": Case(library="albumentations", make=albumentations),
    "albumentations-seed": Case(library="albumentations", make=lambda: albumentations(seed=7), setting="seed=7"),
    "albumentationsx": Case(library="albumentations", make=lambda: albumentations(telemetry=False)),
    "albumentationsx-seed": Case(
        library="albumentations", make=lambda: albumentations(seed=7, telemetry=False), setting="seed=7"
    ),
    "transformers": Case(library="transformers", make=lambda: collator(seed=None), setting="MLM, seed=None"),
    "transformers-seed": Case(library="transformers", make=lambda: collator(seed=42), setting="MLM, seed=42"),
    "braindecode": Case(
        library="braindecode",
        make=lambda: braindecode(random_state=None),
        own=augmented_data_loader,
        own_name="AugmentedDataLoader",
        setting="random_state=None",
    ),
    "braindecode-seed": Case(
        library="braindecode",
        make=lambda: braindecode(random_state=7),
        own=augmented_data_loader,
        own_name="AugmentedDataLoader",
        setting="random_state=7",
    ),
    "lhotse": Case(library="lhotse", make=lhotse, own=lhotse_loader, own_name="DataLoader, lhotse's worker_init_fn"),
    "kornia": Case(library="kornia", make=kornia),
    "torchio": Case(library="torchio", make=torchio),
    "timm": Case(library="timm", make=timm),
    "torch_geometric": Case(
        library="torch_geometric", make=torch_geometric, own=graph_loader, own_name="torch_geometric.loader.DataLoader"
    ),
    "pytorch_forecasting": Case(
        library="pytorch_forecasting", make=pytorch_forecasting, setting="randomize_length=(1, 1)"
    ),
}


def ours(case: Case, policy: str, workers: int) -> lk.Loader:
    data = case.make()
    return lk.Loader(
        data.dataset,
        BATCH,
        collate_fn=data.collate,
        num_workers=workers,
        private_generators=policy,  # type: ignore[arg-type]
    )


def own(case: Case) -> Iterable[Any]:
    data = case.make()
    if case.own is not None:
        return case.own(data)
    return DataLoader(data.dataset, BATCH, num_workers=WORKERS, collate_fn=data.collate or default_collate)


def read(loader: Iterable[Any]) -> list[int]:
    return [int(value) for _ in range(EPOCHS) for batch in loader for value in batch]


def read_by(make: Callable[[int], Iterable[Any]], workers: int) -> list[int]:
    return read(make(workers))


def read_and_die(make: Callable[[int], lk.Loader], path: Path) -> None:
    """Save what was read and the state after some batches, and die."""
    loader = make(WORKERS)
    values: list[int] = []
    for number, batch in enumerate(each for _ in range(EPOCHS) for each in loader):
        values += map(int, batch)
        if number + 1 == KILLED_AFTER:
            path.write_bytes(pickle.dumps((values, loader.state_dict())))
            os.kill(os.getpid(), signal.SIGKILL)


def resume(make: Callable[[int], lk.Loader], path: Path) -> list[int]:
    """Read the rest with other workers."""
    loader = make(1)
    values, state = pickle.loads(path.read_bytes())
    loader.load_state_dict(state)
    return [*values, *(int(value) for batch in loader for value in batch)]


def cost(case: Case) -> dict[str, float]:
    """Return microseconds of a sample, of seeding its private generators, and milliseconds of finding them."""
    data = case.make()
    roots = {"dataset": data.dataset} | ({"collate_fn": data.collate} if data.collate is not None else {})
    data.sample()  # libraries make generators at the first call
    walks: list[float] = []
    samples: list[float] = []
    seeds: list[float] = []
    for _ in range(COST_ROUNDS):
        start = time.perf_counter()
        found = private_generators(**roots)
        walks.append(time.perf_counter() - start)
        seeded = list(dict.fromkeys(each.seeded for each in found if each.seeded is not None))
        count, start = 0, time.perf_counter()
        while (taken := time.perf_counter() - start) < COST_S / COST_ROUNDS or not count:
            data.sample()
            count += 1
        samples.append(taken / count)
        start = time.perf_counter()
        for word in range(100):
            for each in seeded:
                each.seed(word * 0x9E3779B97F4A7C15 % 2**64)
        seeds.append((time.perf_counter() - start) / 100)
    return {
        "generators": len(found),
        "walk_ms": 1e3 * float(np.median(walks)),
        "seeding_us": 1e6 * float(np.median(seeds)),
        "sample_us": 1e6 * float(np.median(samples)),
    }


def seed_everything() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def apart(function: Callable[[], Any], path: Path) -> Any:
    """Return what a function returns in a forked process, or its error as a text."""
    path.unlink(missing_ok=True)
    if not (pid := os.fork()):
        try:
            seed_everything()
            path.write_bytes(pickle.dumps(function()))
        except BaseException as error:
            path.write_bytes(pickle.dumps(f"{type(error).__name__}: {error}"))
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(pid, 0)
    return pickle.loads(path.read_bytes()) if path.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("folder", type=Path, help="where the killed runs of an earlier process are, and this one's go")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    case = CASES[given.case]
    module = __import__(case.library)
    case.make()  # imports
    answer = given.folder / "answer"
    found: dict[str, Any] = {"version": getattr(module, "__version__", ""), "own_loader": case.own_name}
    for policy in ("seed", "leave"):
        make = partial(ours, case, policy)
        found[policy] = apart(partial(read_by, make, WORKERS), answer)
        found[f"{policy}_inline"] = apart(partial(read_by, make, 0), answer)
        path = given.folder / f"killed-{policy}"
        if path.exists():
            found[f"{policy}_resumed"] = apart(partial(resume, make, path), answer)
        else:
            apart(partial(read_and_die, make, path), answer)
    found["own"] = apart(lambda: read(own(case)), answer)
    found["cost"] = apart(lambda: cost(case), answer)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
