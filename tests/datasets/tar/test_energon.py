"""Folders that Megatron Energon prepared: the samples of its own reader, found by its own index without a scan."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawing import equal
from remote_made import put_in_memory, remote_settings
from shards import check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.cli.command import main
from loaderkit.datasets.tar import dataset as tar_module

FIXTURES = Path(__file__).parents[2] / "fixtures" / "energon"
FOLDER = FIXTURES / "data"
VALUES: dict[str, list[dict[str, Any]]] = json.loads((FIXTURES / "values.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "it"))


@pytest.mark.parametrize("split", VALUES)
def test_each_split_has_the_samples_that_its_own_reader_gives(split: str) -> None:
    data = lk.TarDataset(FOLDER, split=split)
    assert len(data) == len(VALUES[split]) > 2
    check_reads(data, VALUES[split])
    columns = data.read_columns([*range(len(data)), 0])
    assert isinstance(columns, dict)
    assert columns["__key__"] == [sample["__key__"] for sample in [*VALUES[split], VALUES[split][0]]]
    check_laws(
        lambda: lk.TarDataset(FOLDER, split=split, transform=with_draws), lambda sample: VALUES[split].index(sample)
    )


@pytest.mark.parametrize("split", VALUES)
def test_a_remote_folder_is_the_same(split: str, tmp_path: Path) -> None:
    url = put_in_memory(FOLDER, "energon-fixture")
    for settings in remote_settings(tmp_path):
        check_reads(lk.TarDataset(url, split=split, **settings), VALUES[split])


def test_only_shards_with_excluded_samples_are_scanned(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[str] = []
    scan = tar_module.index_tar
    monkeypatch.setattr(
        tar_module, "index_tar", lambda file, size, shard: scanned.append(shard) or scan(file, size, shard)
    )
    with_index = lk.TarDataset(folder, split="train", index_dir=tmp_path / "1")
    assert [Path(shard).name for shard in scanned] == ["s_001.tar"]
    for path in folder.glob("*.idx"):
        path.unlink()
    without = lk.TarDataset(folder, split="train", index_dir=tmp_path / "2")
    assert len(scanned) == 1 + 3
    assert equal(list(with_index), list(without))
    assert with_index.fingerprint() == without.fingerprint()  # a checkpoint fits both
    assert with_index.place(0).start == 0


def starts(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        starts(512, 1536),
        starts(0, 1536, 1000),
        starts(0, 1536, 1536),
        starts(0, 99_840),
        starts(0, 2**63 + 512),
    ],
    ids=["empty", "cut", "not from 0", "not whole blocks", "twice", "beyond the end", "negative"],
)
def test_an_index_of_another_file_is_refused(content: bytes, folder: Path) -> None:
    (folder / "s_003.tar.idx").write_bytes(content)
    with pytest.raises(
        lk.ShardError, match=r"s_003\.tar\.idx: not an index of .*energon prepare.*list of its tar files"
    ):
        lk.TarDataset(folder, split="val")
    assert len(lk.TarDataset(sorted(folder.glob("*.tar")))) == 12


@pytest.mark.parametrize("numbers", [(0, 7168, 10_752), (0, 1536, 7168)])
def test_an_index_with_other_samples_is_found_when_they_are_read(numbers: tuple[int, ...], folder: Path) -> None:
    (folder / "s_003.tar.idx").write_bytes(starts(*numbers))
    data = lk.TarDataset(folder, split="val")
    with pytest.raises(lk.ShardError, match=r"s_003\.tar from byte [\d,]+ on"):
        list(data)


def dataset_dict(folder: Path) -> None:
    import pyarrow as pa

    for name in ("train", "val"):
        (folder / name).mkdir(parents=True)
        data = pa.table({"x": [1]})
        with pa.ipc.new_stream(str(folder / name / "data-00000-of-00001.arrow"), data.schema) as writer:
            writer.write_table(data)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "val"]}')


@pytest.mark.parametrize(
    "write", [lambda folder: shutil.copytree(FOLDER, folder), dataset_dict], ids=["energon", "dataset_dict"]
)
def test_preview_lists_the_splits(
    write: Callable[[Path], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "it")
    assert main(["preview", str(tmp_path / "it")]) == 1
    assert "Its splits: train, val." in capsys.readouterr().err
    assert main(["preview", str(tmp_path / "it"), "--option", "split=val"]) == 0
