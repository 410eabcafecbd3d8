"""Each sentence of the guides about another library's behaviour has a check: a test, a script of findings/, or a measured table."""

import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

import loaderkit as lk

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it

ROOT = Path(__file__).parents[2]
MOVING = ROOT / "docs/moving"
HERE = "tests/project/test_moving_claims.py::"
OTHERS = "tests/testing/test_other_loaders.py::"
GUIDES = "tests/project/test_moving.py::"
MEASURED = "benchmarks/results/peers_resume.md"
GRAIN = "findings/grain-state-fits-one-number-of-workers.sh"
LHOTSE = "findings/lhotse-shar-ends-with-the-shorter-file.sh"

# By page: words of a sentence, and its check. Of the table: row, loader, cell.
CLAIMS: dict[str, dict[str, str | tuple[str, str, str]]] = {
    "dataloader": {
        "With another `num_workers` a sample gets other random numbers.": OTHERS
        + "test_augmentations_differ_with_the_workers",
        "all workers draw the same from it": OTHERS + "test_a_private_generator_draws_the_same_in_every_worker",
        "| tuple with a string | the strings as a tuple |": HERE + "test_the_default_batch_of_dataloader",
        "DataLoader continues with the next batch if you call `next` again": HERE
        + "test_dataloader_continues_after_an_error",
        "Two iterators of one DataLoader are independent": HERE + "test_iterators_of_dataloader_are_independent",
        "`DistributedSampler` gives each rank every R-th sample": HERE
        + "test_distributed_sampler_deals_every_rth_sample",
        "repeats samples if R does not divide them": OTHERS
        + "test_distributed_sampler_repeats_samples_if_ranks_do_not_divide_them",
        "such as timm's `PrefetchLoader`": "findings/timm_prefetch_loader_is_one_batch_ahead.sh",
    },
    "stateful-dataloader": {
        "| other `num_workers` | AssertionError |": OTHERS
        + "test_stateful_dataloader_refuses_other_workers_without_a_message",
        "| other `batch_size` | continues on one rank |": ("batch 8, then 16", "StatefulDataLoader", "**exact**"),
        "| other number of ranks | repeats or leaves out samples |": (
            "1 rank, then 2",
            "StatefulDataLoader",
            "1 dup / 328 skip",
        ),
        "| other length of the dataset | continues, in another order |": HERE
        + "test_stateful_dataloader_takes_a_dataset_of_another_length",
        "yields nothing in the first pass after such a resume": HERE
        + "test_stateful_dataloader_yields_nothing_after_an_epochs_last_batch",
        "`StatefulDataLoader` needs the state of each rank.": OTHERS + "test_rank_0_state_puts_rank_1_on_its_data",
        "`StatefulDataLoader` saves the `state_dict` of a map-style dataset.": HERE
        + "test_stateful_dataloader_saves_the_state_of_its_dataset",
        "not a generator's 5 KB": HERE + "test_the_state_of_a_shuffled_stateful_dataloader_has_a_generator",
    },
    "webdataset": {
        "does not turn a picture by its EXIF entry": GUIDES
        + "test_webdatasets_torchrgb8_neither_turns_nor_scales_as_the_page_says",
        'as with `"torchrgb8"`': GUIDES + "test_webdatasets_torchrgb8_neither_turns_nor_scales_as_the_page_says",
        "not `__url__` and `__local_path__`": HERE + "test_a_sample_of_webdataset_names_its_file",
        "A WebLoader with two workers ends with a short batch from each.": HERE
        + "test_a_web_loader_ends_with_a_short_batch_of_each_worker",
        "WebDataset can end such a shard early without an error.": (
            "a shard cut to 60 %",
            "webdataset",
            "36 skip, no error",
        ),
        "WebDataset's resume needs `StatefulDataLoader` and the same number of workers and ranks.": (
            "2 workers, then 3",
            "webdataset",
            "AssertionError without a message",
        ),
    },
    "huggingface-datasets": {
        "makes float32 of integers": GUIDES
        + "test_hugging_faces_torch_format_rounds_a_batch_with_a_null_as_the_page_says",
        "makes float64 and int64 of them": HERE + "test_the_default_collate_widens_hugging_faces_numbers",
        "Their buffer mixes neighbours.": HERE + "test_hugging_faces_buffer_mixes_neighbours",
    },
    "litdata": {
        "another batch size litdata 0.2.76 repeated 8 samples": ("batch 8, then 16", "litdata", "8 dup"),
        "With another number of ranks": ("1 rank, then 2", "litdata", "8 dup"),
        "litdata gave two ranks 63 and 64 batches": ("uneven data on 2 ranks", "litdata", "exact; 63 / 64 batches"),
        "On several ranks litdata sets `drop_last=True` by default.": "findings/litdata-drops-samples-on-several-ranks.sh",
        "litdata's random numbers differed after the resume.": (
            "random augmentation after the resume",
            "litdata",
            "different",
        ),
    },
    "mosaicml-streaming": {
        "yields nothing in its first pass": "findings/mosaicml-state-of-an-epochs-end.sh",
        "repeats samples so that the ranks get equally many": (
            "uneven data on 2 ranks",
            "mosaicml-streaming",
            "1 dup; 64 / 64 batches",
        ),
        "the order did not depend on it in our test": "findings/mosaicml-order-ignores-batch-size.sh",
        "Streaming's random numbers differed after the resume in our test.": (
            "random augmentation after the resume",
            "mosaicml-streaming",
            "different",
        ),
    },
    "energon": {
        "with another number of workers it is an AssertionError": (
            "2 workers, then 3",
            "Megatron-Energon",
            "AssertionError without a message",
        ),
        "on one rank in place of two energon repeated 178 samples and left out 173": (
            "2 ranks, then 1",
            "Megatron-Energon",
            "178 dup / 173 skip",
        ),
        "A larger batch than before is an error of energon": (
            "batch 8, then 16",
            "Megatron-Energon",
            'ValueError "Resuming with larger micro batch size is not allowed: 16 > 8"',
        ),
    },
    "lhotse": {
        "lhotse's cuts have both": LHOTSE,
        "lhotse ends a shard with the shorter of its files": LHOTSE,
        "lhotse's samplers read all cuts again": LHOTSE,
    },
    "grain": {
        "grain's state fits one number of workers": GRAIN,
        "`TFRecordIterDataset`": GRAIN,
        "`ParquetIterDataset`": GRAIN,
        "`random_map`": GRAIN,
    },
}
OF_OTHERS = {  # how a page calls the other library where it says what that does
    "webdataset": r"WebDataset\b|WebLoader|torchrgb8|__url__",
    "huggingface-datasets": r"\b[Tt]heir (?!own)\w+ \w+s\b",
    "litdata": r"litdata",
    "mosaicml-streaming": r"Streaming(?!DataLoader)\b|StreamingDataset",
    "energon": r"energon\b",
    "lhotse": r"lhotse",
    "grain": r"grain\b|random_map",
}


def text_of(page: str) -> str:
    return " ".join((MOVING / f"{page}.md").read_text().split())


def measured(row: str, loader: str) -> str:
    lines = [line.strip("| ").split(" | ") for line in (ROOT / MEASURED).read_text().splitlines() if line[:1] == "|"]
    column = next(number for number, name in enumerate(lines[0]) if name.startswith(loader))
    return next(line for line in lines if line[0] == row)[column + 1]


@pytest.mark.parametrize(
    ("page", "words", "check"), [(page, *claim) for page, claims in CLAIMS.items() for claim in claims.items()]
)
def test_a_claim_about_another_library_has_its_check(page: str, words: str, check: str | tuple[str, str, str]) -> None:
    assert words in text_of(page), "the page says something else: change the claim here, and its check"
    if isinstance(check, tuple):
        row, loader, cell = check
        assert measured(row, loader) == cell
    else:
        file, _, name = check.partition("::")
        assert (ROOT / file).is_file()
        assert not name or f"\ndef {name}(" in (ROOT / file).read_text()


def test_every_guide_has_claims() -> None:
    assert set(CLAIMS) == {page.stem for page in MOVING.glob("*.md")} - {"index", "comparison"}


@pytest.mark.parametrize("page", OF_OTHERS)
def test_no_difference_is_claimed_without_a_check(page: str) -> None:
    differences = (MOVING / f"{page}.md").read_text().split("\n## What differs\n")[1].split("\n## ")[0]
    points = [" ".join(point.split()) for point in re.split(r"^- ", differences, flags=re.MULTILINE)[1:]]
    about = [point for point in points if re.search(OF_OTHERS[page], point)]
    assert about
    assert [point for point in about if not any(words in point for words in CLAIMS[page])] == []


@pytest.mark.parametrize(
    ("page", "package"),
    [("webdataset", "webdataset"), ("huggingface-datasets", "datasets"), ("stateful-dataloader", "torchdata")],
)
def test_the_tests_have_the_version_that_the_page_names(page: str, package: str) -> None:
    pytest.importorskip(package)
    version = re.match(r"\d+\.\d+", importlib.metadata.version(package))
    assert version is not None
    assert f"{package} {version[0]}" in text_of(page)


@pytest.mark.parametrize("package", ["litdata", "mosaicml-streaming", "lhotse", "grain"])
def test_a_finding_has_the_version_that_the_page_names(package: str) -> None:
    scripts = list((ROOT / "findings").glob(f"{package.split('-')[0]}-*.sh"))
    assert scripts
    for script in scripts:
        (version,) = set(re.findall(rf"{package}==(\S+)", script.read_text()))
        assert re.search(rf"{package} {re.escape(version.removesuffix('.0'))}\b", text_of(package))


def test_the_table_has_the_version_of_energon_that_the_page_names() -> None:
    (version,) = re.findall(r"Megatron-Energon (\S+)", (ROOT / MEASURED).read_text())
    assert f"megatron-energon {version}." in text_of("energon")


def test_the_default_batch_of_dataloader() -> None:
    assert isinstance(default_collate([(1, 2), (3, 4)]), list)
    assert default_collate([("a", 1), ("b", 2)])[0] in (("a", "b"), ["a", "b"])
    assert isinstance(default_collate([("a", 1), ("b", 2)])[0], tuple)
    for samples, error in [
        ([None, None], TypeError),
        ([torch.zeros(1), torch.zeros(2)], RuntimeError),
        ([{"a": 1}, {"b": 1}], KeyError),
    ]:
        with pytest.raises(error):
            default_collate(samples)


class Damaged:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise OSError("image file is truncated")
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_dataloader_continues_after_an_error(workers: int) -> None:
    data: Any = Damaged()
    batches = iter(DataLoader(data, 2, num_workers=workers))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(OSError, match="truncated"):
        next(batches)
    assert next(batches).tolist() == [4, 5]
    ours = iter(lk.Loader(data, 2, num_workers=workers))
    next(ours)
    with pytest.raises(OSError, match="truncated"):
        next(ours)
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(ours)


def test_iterators_of_dataloader_are_independent() -> None:
    data: Any = range(4)
    loader = DataLoader(data, 2)
    first, second = iter(loader), iter(loader)
    assert [next(first).tolist(), next(second).tolist(), next(first).tolist()] == [[0, 1], [0, 1], [2, 3]]


def test_distributed_sampler_deals_every_rth_sample() -> None:
    data: Any = range(7)
    dealt = [list(DistributedSampler(data, 3, rank, shuffle=False)) for rank in range(3)]
    assert dealt == [[0, 3, 6], [1, 4, 0], [2, 5, 1]]


def stateful(size: int) -> Any:
    torch.manual_seed(0)
    data: Any = range(size)
    return StatefulDataLoader(data, batch_size=2, shuffle=True)


def ids(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch]


def test_stateful_dataloader_takes_a_dataset_of_another_length() -> None:
    loader = stateful(12)
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), ids(batches)
    same, longer = stateful(12), stateful(14)
    same.load_state_dict(state)
    assert ids(same) == rest
    longer.load_state_dict(state)
    found = ids(longer)
    assert len(found) == 12
    assert found[:10] != rest


def test_stateful_dataloader_yields_nothing_after_an_epochs_last_batch() -> None:
    loader = stateful(4)
    batches = iter(loader)
    next(batches), next(batches)  # the last one; StopIteration did not come yet
    resumed = stateful(4)
    resumed.load_state_dict(loader.state_dict())
    assert [len(list(resumed)), len(list(resumed))] == [0, 2]


class Counts:
    """A dataset that counts what was read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return index

    def state_dict(self) -> dict[str, int]:
        return {"reads": self.reads}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.reads = state["reads"]


def test_stateful_dataloader_saves_the_state_of_its_dataset() -> None:
    data: list[Any] = [Counts(), Counts()]
    loader = StatefulDataLoader(data[0], batch_size=2)
    next(iter(loader))
    resumed = StatefulDataLoader(data[1], batch_size=2)
    resumed.load_state_dict(loader.state_dict())
    iter(resumed)
    assert data[1].reads == 2


def test_the_state_of_a_shuffled_stateful_dataloader_has_a_generator() -> None:
    def tensors(value: Any) -> Iterator[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            for inner in value.values():
                yield from tensors(inner)

    loader = stateful(8)
    next(iter(loader))
    assert 5_000 <= sum(found.nbytes for found in tensors(loader.state_dict())) < 6_000


def shards_of(folder: Path) -> list[str]:
    lk.write_shards([{"cls": row} for row in range(20)], folder, format="tar", samples_per_shard=10)
    return sorted(map(str, folder.glob("*.tar")))


@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_webdataset_names_its_file(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    shards = shards_of(tmp_path / "shards")
    theirs = next(iter(webdataset.WebDataset(shards, shardshuffle=False)))
    assert {"__key__", "__url__", "__local_path__"} <= set(theirs)
    assert set(lk.TarDataset(shards)[0]) == {"__key__", "cls"}


@pytest.mark.filterwarnings("ignore")
def test_a_web_loader_ends_with_a_short_batch_of_each_worker(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    shards = shards_of(tmp_path / "shards")
    data = webdataset.WebDataset(shards, shardshuffle=False).decode().to_tuple("cls").batched(4)
    sizes = [len(batch[0]) for batch in webdataset.WebLoader(data, batch_size=None, num_workers=2)]
    assert sorted(sizes) == [2, 2, 4, 4, 4, 4]
    assert [len(batch["cls"]) for batch in lk.Loader(lk.TarDataset(shards), 4, num_workers=2)] == [4] * 5


def test_the_default_collate_widens_hugging_faces_numbers() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"x": datasets.Value("float32"), "y": datasets.Value("uint8")})
    rows = datasets.Dataset.from_dict({"x": [0.5, 1.5], "y": [1, 2]}, features=features)
    theirs = next(iter(DataLoader(rows, 2)))
    assert (theirs["x"].dtype, theirs["y"].dtype) == (torch.float64, torch.int64)
    ours = next(iter(lk.Loader(rows, 2)))
    assert (ours["x"].dtype, ours["y"].dtype) == (torch.float32, torch.uint8)


def test_hugging_faces_buffer_mixes_neighbours() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": list(range(1000))})
    stream = rows.to_iterable_dataset().shuffle(seed=1, buffer_size=10)
    assert max(row["x"] for row in stream.take(100)) < 110
    order = next(iter(lk.Loader(lk.HFDataset(rows), 100, shuffle=True)))["x"]
    assert int(order.max()) > 900
