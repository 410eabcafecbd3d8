"""Documents in token files: what slicing between the ends gives, one by one and in batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from shards import SIZES, check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.datasets.base import reads_batches


def write(folder: Path, sizes: list[int], dtype: str = "uint16", least: int = 0) -> list[Any]:
    """Write shards with these numbers of documents of `least` to `least` + 5 tokens, which are the document's number."""
    documents: list[Any] = []
    for shard, size in enumerate(sizes):
        numbers = range(len(documents), len(documents) + size)
        mine = [np.array([number] * (number * 7 % 6 + least), dtype) for number in numbers]
        np.concatenate([np.empty(0, dtype), *mine]).astype(dtype).tofile(folder / f"{shard:03}.ds")
        np.cumsum([len(document) for document in mine]).astype("<u8").tofile(folder / f"{shard:03}.ds.index")
        documents += [document.astype(np.dtype(dtype).newbyteorder("=")) for document in mine]
    return documents


def split(batch: lk.Ragged) -> list[Any]:
    return [piece.numpy() for piece in batch.values.split(batch.offsets.diff().tolist())]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint32", "int64", ">u2"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_samples_are_the_documents(sizes: list[int], dtype: str, tmp_path: Path) -> None:
    wanted = write(tmp_path, sizes, dtype)
    data = lk.DocumentDataset(tmp_path, dtype=dtype, max_open=2)
    check_reads(data, wanted)
    assert data.shard_sizes.tolist() == sizes
    assert data.lengths().tolist() == [len(document) for document in wanted]
    for indices in (np.arange(len(wanted)), np.arange(len(wanted))[::-1], np.array([0, len(wanted) - 1, 0])):
        batch = data.read_batch(indices)
        assert equal(split(batch), [wanted[index] for index in indices])
        assert batch.offsets.dtype == torch.int64
        batch.values.zero_()  # a copy, and writable
    check_reads(data, wanted)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_them_in_batches(workers: int, tmp_path: Path) -> None:
    wanted = write(tmp_path, [40, 23])
    data = lk.DocumentDataset(tmp_path)
    loader = lk.Loader(data, 8, shuffle=True, num_workers=workers)
    batches = list(loader)
    assert all(isinstance(batch, lk.Ragged) for batch in batches)
    for number, batch in enumerate(batches):
        assert equal(split(batch), [wanted[index] for index in loader.indices(0, number)])
    nested = torch.nested.nested_tensor_from_jagged(*batches[0])
    assert equal([row.numpy() for row in nested.unbind()], split(batches[0]))


def test_the_laws(tmp_path: Path) -> None:
    write(tmp_path, [5, 0, 9], least=1)
    check_laws(lambda: lk.DocumentDataset(tmp_path, transform=with_draws), lambda document: int(document[0]))


def test_a_transform_takes_documents_one_by_one(tmp_path: Path) -> None:
    wanted = write(tmp_path, [12])
    data = lk.DocumentDataset(tmp_path, transform=len)
    assert not reads_batches(data)
    assert next(iter(lk.Loader(data, 12))).tolist() == [len(document) for document in wanted]
    assert reads_batches(lk.DocumentDataset(tmp_path))


def test_the_fingerprint_knows_the_tokens(tmp_path: Path) -> None:
    write(tmp_path, [12])
    one = lk.DocumentDataset(tmp_path).fingerprint()
    assert lk.DocumentDataset(tmp_path).fingerprint() == one
    assert lk.DocumentDataset(tmp_path, dtype="int16").fingerprint() != one


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write(tmp_path, [12])
    tokens, ends = (tmp_path / name for name in ("000.ds", "000.ds.index"))
    content, places = tokens.read_bytes(), ends.read_bytes()
    with pytest.raises(ValueError, match="dtype is float32, wanted integers"):
        lk.DocumentDataset(tmp_path, dtype="float32")
    with pytest.raises(lk.ShardError, match=r"000\.ds: has .* tokens of uint8, its last document ends at"):
        lk.DocumentDataset(tmp_path, dtype="uint8")
    for cut in range(len(content)):
        tokens.write_bytes(content[:cut])
        with pytest.raises(lk.ShardError, match=r"000\.ds: (cut, |has )"):
            lk.DocumentDataset(tmp_path)
    tokens.write_bytes(content)
    for cut in range(len(places)):
        ends.write_bytes(places[:cut])
        if cut % 8 or np.frombuffer(places[:cut], "<u8").max(initial=0) * 2 != len(content):
            with pytest.raises(lk.ShardError, match=r"000\.ds"):
                lk.DocumentDataset(tmp_path)
    ends.unlink()
    with pytest.raises(lk.ShardError, match=r"000\.ds: has no 000\.ds\.index"):
        lk.DocumentDataset(tmp_path)


@pytest.mark.parametrize("bad", [2**63 + 5, 10**6])
def test_damaged_ends_are_named_and_read_nothing_else(bad: int, tmp_path: Path) -> None:
    write(tmp_path, [12])
    path = tmp_path / "000.ds.index"
    ends = np.fromfile(path, "<u8")
    ends[3] = bad
    ends.tofile(path)
    data = lk.DocumentDataset(tmp_path)
    for row in (3, 4):
        with pytest.raises(lk.ShardError, match=rf"000\.ds: document {row} is from token"):
            data[row]
        with pytest.raises(lk.ShardError, match=rf"document {row} is from"):
            data.read_batch(np.array([0, row]))


def test_what_datatrove_wrote_is_read_in_place(tmp_path: Path) -> None:
    """Files of the DocumentTokenizer of datatrove 0.10.1, for documents of 3, 1, 7, 0 and 5 words and an end token, 8."""
    files = {
        ".ds": "000001010202080000000800000001010202030304040505060608000800000001010202030304040800",
        ".ds.index": "".join(f"{end:02x}00000000000000" for end in (4, 6, 14, 15, 21)),
        ".ds.loss": "01" * 21,
        ".ds.metadata": "746f6b2e6a736f6e7c320a32310a32312e302054",
    }
    for suffix, content in files.items():
        (tmp_path / f"00000_unshuffled{suffix}").write_bytes(bytes.fromhex(content))
    words = [257 * number for number in range(7)]
    found = [document.tolist() for document in lk.DocumentDataset(tmp_path)]
    assert found == [[*words[:count], 8] for count in (3, 1, 7, 0, 5)]


def test_a_folder_of_other_files_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(4))
    with pytest.raises(
        lk.ShardError, match=r"a\.bin: has no a\.bin\.index .* no a\.idx, .* nanoGPT .* use lk\.TokenDataset"
    ):
        lk.DocumentDataset(tmp_path)


def test_the_dtype_is_what_the_files_declare(tmp_path: Path) -> None:
    write(tmp_path, [12], "uint32")
    (tmp_path / "000.ds.metadata").write_text("tok|v2.json|4\n30\n30.0 T")
    data = lk.DocumentDataset(tmp_path)
    assert data.dtype == data[1].dtype == np.uint32
    (tmp_path / "000.ds.metadata").write_text("no size\n")
    with pytest.raises(lk.ShardError, match=r"tokens of uint16, its last document ends at .* try dtype='uint32'"):
        lk.DocumentDataset(tmp_path)
