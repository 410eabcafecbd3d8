"""Folders with splits that other tools prepared: one split is read, and never several as one dataset."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from drawing import equal
from shards import check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.datasets.braces import expand_braces

SPLIT = """
exclude: {exclude}
split_parts:
  train: ['s_{{000..001}}.tar']
  val: [deep/s_002.tar]
  test: []
"""


def arrow(path: Path, values: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = pa.table({"x": values})
    with pa.ipc.new_stream(str(path), data.schema) as writer:
        writer.write_table(data)


def dataset_dict(folder: Path) -> dict[str, list[Any]]:
    """As `DatasetDict.save_to_disk` lays it out."""
    parts = {"train": [[1, 2, 3], [4]], "test": [[5], [6, 7]]}
    for name, shards in parts.items():
        for number, values in enumerate(shards):
            arrow(folder / name / f"data-{number:05}-of-00002.arrow", values)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    return {name: [{"x": value} for shard in shards for value in shard] for name, shards in parts.items()}


def energon(folder: Path, exclude: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    """As `energon prepare` lays it out: three shards of three samples, of which some are excluded."""
    shards = {"s_000.tar": range(3), "s_001.tar": range(3, 6), "deep/s_002.tar": range(6, 9)}
    for name, values in shards.items():
        made = folder.parent / f"made-{values[0]}"
        samples = [{"__key__": f"k{value:03}", "cls": value} for value in values]
        lk.write_shards(samples, made, format="tar", jobs=1)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        next(made.glob("*.tar")).rename(folder / name)
    (folder / ".nv-meta").mkdir()
    (folder / ".nv-meta" / "split.yaml").write_text(SPLIT.format(exclude=json.dumps(exclude)))
    left = {f"{shard}/k{value:03}": value for shard, values in shards.items() for value in values}
    gone = {name for pattern in exclude for name in expand_braces(pattern)}
    kept = {name: value for name, value in left.items() if name not in gone and name.partition("/k")[0] not in gone}
    samples = {name: {"__key__": f"k{value:03}", "cls": value} for name, value in kept.items()}
    return {
        "train": [sample for name, sample in samples.items() if not name.startswith("deep")],
        "val": [sample for name, sample in samples.items() if name.startswith("deep")],
    }


EXCLUDES = [
    (),
    ("s_000.tar",),
    ("s_000.tar/k001",),
    ("s_001.tar/k{004..005}", "deep/s_002.tar/k006"),
    ("s_000.tar", "s_001.tar/k003", "s_000.tar/k000"),
]


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_of_a_dataset_dict_is_read(split: str, tmp_path: Path) -> None:
    wanted = dataset_dict(tmp_path)[split]
    check_reads(lk.ParquetDataset(tmp_path, split=split), wanted)
    check_laws(
        lambda: lk.ParquetDataset(tmp_path, split=split, transform=with_draws),
        lambda row: row["x"] - wanted[0]["x"],
    )
    assert equal(list(lk.ParquetDataset(tmp_path / split)), wanted)  # as before


@pytest.mark.parametrize("exclude", EXCLUDES)
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_of_an_energon_folder_is_read_without_what_it_excludes(
    split: str, exclude: tuple[str, ...], tmp_path: Path
) -> None:
    wanted = energon(tmp_path / "it", exclude)[split]
    data = lk.TarDataset(tmp_path / "it", split=split)
    check_reads(data, wanted)
    assert data.read_columns(range(len(data)))["cls"] == [sample["cls"] for sample in wanted]  # type: ignore[call-overload]
    assert [data.place(index).key for index in range(len(data))] == [sample["__key__"] for sample in wanted]
    values = [sample["cls"] for sample in wanted]
    check_laws(
        lambda: lk.TarDataset(tmp_path / "it", split=split, transform=with_draws), lambda one: values.index(one["cls"])
    )


def test_which_samples_are_excluded_is_in_the_fingerprint(tmp_path: Path) -> None:
    found = set()
    for number, key in enumerate(["k000", "k001", "k003"]):
        energon(tmp_path / str(number) / "it", (f"s_00{key == 'k003':d}.tar/{key}",))
        found.add(lk.TarDataset(tmp_path / str(number) / "it", split="train").fingerprint())
    assert len(found) == 3


@pytest.mark.parametrize(
    ("write", "kind"), [(dataset_dict, lk.ParquetDataset), (energon, lk.TarDataset)], ids=["dataset_dict", "energon"]
)
def test_without_a_split_an_error_lists_them(
    write: Callable[[Path], dict[str, list[Any]]], kind: Any, tmp_path: Path
) -> None:
    names = list(write(tmp_path / "outer" / "it"))
    for place in ("outer/it", "outer"):
        with pytest.raises(lk.ShardError, match=rf"outer/it: is .*Its splits: {', '.join(names)}.*split='train'"):
            kind(tmp_path / place)
    with pytest.raises(lk.ShardError, match=rf"has no split 'dev', wanted one of \['{names[0]}', '{names[1]}'"):
        kind(tmp_path / "outer" / "it", split="dev")
    with pytest.raises(lk.ShardError, match="has no splits that split='train' could choose from"):
        kind(tmp_path / "outer", split="train")


def test_one_split_alone_is_not_mixed(tmp_path: Path) -> None:
    arrow(tmp_path / "train" / "data-00000-of-00001.arrow", [1, 2])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert len(lk.ParquetDataset(tmp_path)) == len(lk.ParquetDataset(tmp_path, split="train")) == 2


def test_fields_of_a_shar_folder_are_not_mixed(tmp_path: Path) -> None:
    samples = [{"__key__": f"{number}", "cls": number} for number in range(3)]
    for field in ("recording", "features"):
        lk.write_shards(samples, tmp_path / f".{field}", format="tar", jobs=1)
        (tmp_path / "it").mkdir(exist_ok=True)
        next((tmp_path / f".{field}").glob("*.tar")).rename(tmp_path / "it" / f"{field}.000000.tar")
    (tmp_path / "it" / "cuts.000000.jsonl.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(lk.ShardError, match="Its fields: features, recording"):
        lk.TarDataset(tmp_path / "it")
    assert len(lk.TarDataset(f"{tmp_path}/it/recording.*.tar")) == 3
    (tmp_path / "it" / "features.000000.tar").unlink()
    assert len(lk.TarDataset(tmp_path / "it")) == 3  # one field is what it was


@pytest.mark.parametrize("write", [dataset_dict, energon])
def test_splits_in_a_bucket_are_those_of_the_folder(write: Callable[..., dict[str, list[Any]]], tmp_path: Path) -> None:
    wanted = write(tmp_path / "it", *([("s_000.tar/k001",)] if write is energon else []))
    files = fsspec.filesystem("memory")
    files.store.clear()
    for path in (tmp_path / "it").rglob("*"):
        if path.is_file() and not path.name.endswith(".lkindex"):
            files.pipe(f"/bucket/it/{path.relative_to(tmp_path / 'it').as_posix()}", path.read_bytes())
    kind: Any = lk.ParquetDataset if write is dataset_dict else lk.TarDataset
    settings = {"storage": lk.Storage(cache_dir=tmp_path / "cache"), "index_dir": tmp_path / "index"}
    for split, samples in wanted.items():
        check_reads(kind("memory://bucket/it", split=split, **settings), samples)
    with pytest.raises(lk.ShardError, match=rf"memory://bucket/it: is .*Its splits: {', '.join(wanted)}"):
        kind("memory://bucket/it", **settings)


@pytest.mark.parametrize("write", [dataset_dict, energon])
def test_a_datamodule_takes_a_split(write: Callable[..., dict[str, list[Any]]], tmp_path: Path) -> None:
    wanted = write(tmp_path / "it", *([("s_000.tar/k001",)] if write is energon else []))
    module = lk.ShardDataModule(train=str(tmp_path / "it"), options={"split": "train"})
    module.prepare_data()
    module.setup("fit")
    assert len(module.train_dataloader().dataset) == len(wanted["train"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not YAML"),
        ("[1]", "has no lists under split_parts"),
        ("split_parts: {train: 3}", "has no lists under split_parts"),
        (
            "split_parts: {train: ['gone_{0..1}.tar']}",
            r"2 of 2 files of the split 'train' are missing, the first is gone_0",
        ),
        ("split_parts: {train: ['{0..99999999}.tar']}", "stands for more than 1,000,000 names"),
        (
            "exclude: [s_000.tar/k9]\nsplit_parts: {train: [s_000.tar]}",
            "has no sample 'k9', which its split leaves out",
        ),
    ],
)
def test_a_wrong_file_of_splits_is_named(text: str, message: str, tmp_path: Path) -> None:
    energon(tmp_path / "it")
    (tmp_path / "it" / ".nv-meta" / "split.yaml").write_text(text)
    with pytest.raises(lk.ShardError, match=message):
        lk.TarDataset(tmp_path / "it", split="train")
