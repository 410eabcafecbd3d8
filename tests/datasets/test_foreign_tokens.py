"""Files of tokens as other tools write them: read in place, and refused with their names if they are damaged."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import equal
from shards import check_laws, check_reads, with_draws

import loaderkit as lk

DOCUMENTS = [[1, 2, 3, 4, 5], [7], [], [300, 301], [8] * 9]


def arrays(dtype: str, documents: list[list[int]] = DOCUMENTS) -> list[Any]:
    return [np.array(document, dtype) for document in documents]


def write_megatron(prefix: Path, documents: list[list[int]], dtype: str, *, cut: int = 3, modes: bool = False) -> None:
    """Write a dataset as the format's description says, with sequences of at most `cut` tokens."""
    code, kind = {"uint8": (1, "B"), "int32": (4, "i"), "int64": (5, "q"), "uint16": (8, "H")}[dtype]
    sizes, bounds, tokens = [], [0], b""
    for document in documents:
        for start in range(0, max(1, len(document)), cut):
            sequence = document[start : start + cut]
            sizes.append(len(sequence))
            tokens += struct.pack(f"<{len(sequence)}{kind}", *sequence)
        bounds.append(len(sizes))
    pointers = [sum(sizes[:number]) * struct.calcsize(kind) for number in range(len(sizes))]
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sizes), len(bounds))
    index += struct.pack(f"<{len(sizes)}i{len(pointers)}q{len(bounds)}q", *sizes, *pointers, *bounds)
    prefix.with_suffix(".bin").write_bytes(tokens)
    prefix.with_suffix(".idx").write_bytes(index + bytes(len(sizes)) * modes)


def write_litdata(folder: Path, chunks: list[list[list[int]]], **config: Any) -> None:
    """Write int32 chunks as litdata's writer describes them: items, where each begins, their bytes."""
    for number, documents in enumerate(chunks):
        ends = np.cumsum([4 * (len(documents) + 2), *(4 * len(document) for document in documents)])
        flat = [token for document in documents for token in document]
        head = struct.pack(f"<{len(documents) + 2}I", len(documents), *ends.tolist())
        (folder / f"chunk-0-{number}.bin").write_bytes(head + struct.pack(f"<{len(flat)}i", *flat))
    about = {"compression": None, "data_format": ["no_header_tensor:16"], "encryption": None, **config}
    (folder / "index.json").write_text(json.dumps({"chunks": [], "config": about}))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("cut", [1, 3, 99])
@pytest.mark.parametrize("modes", [False, True])
def test_a_megatron_dataset_is_its_documents(dtype: str, cut: int, modes: bool, tmp_path: Path) -> None:
    small = [[token % 256 for token in document] for document in DOCUMENTS] if dtype == "uint8" else DOCUMENTS
    write_megatron(tmp_path / "a_text_document", small, dtype, cut=cut, modes=modes)
    write_megatron(tmp_path / "b_text_document", small[::-1], dtype, cut=cut, modes=modes)
    data = lk.DocumentDataset(tmp_path)
    wanted = arrays(dtype, [*small, *small[::-1]])
    check_reads(data, wanted)
    assert data.lengths().tolist() == [len(document) for document in wanted]
    assert data.lengths(np.array([9, 0])).tolist() == [5, 5]
    batch = data.read_batch(np.arange(10)[::-1])
    assert equal([piece.numpy() for piece in batch.values.split(batch.offsets.diff().tolist())], wanted[::-1])
    assert equal(list(lk.PieceDataset(data, 4))[:2], [wanted[0][:4], wanted[0][4:]])


def test_what_megatron_wrote_is_read_in_place(tmp_path: Path) -> None:
    """Files of the IndexedDatasetBuilder of megatron-core 0.16.1: documents of two sequences, one, an empty one, and one."""
    numbers = [5, 5, *(3, 2, 1, 0, 2), *(0, 12, 20, 24, 24), *(0, 2, 3, 4, 5)]
    index = struct.pack("<QQ5i5q5q", *numbers)
    (tmp_path / "large.idx").write_bytes(bytes.fromhex("4d4d4944494458000001000000000000000" + "4") + index)
    tokens = "0100000002000000030000000400000005000000070000002c0100002d010000"
    (tmp_path / "large.bin").write_bytes(bytes.fromhex(tokens))
    assert equal(list(lk.DocumentDataset(tmp_path)), arrays("int32", DOCUMENTS[:4]))
    with pytest.raises(lk.ShardError, match=r"large\.bin: declares tokens of int32, wanted uint16"):
        lk.DocumentDataset(tmp_path, dtype="uint16")


def test_litdata_chunks_are_their_documents(tmp_path: Path) -> None:
    write_litdata(tmp_path, [DOCUMENTS, [[9]], DOCUMENTS[::-1]])
    data = lk.DocumentDataset(tmp_path)
    check_reads(data, arrays("int32", [*DOCUMENTS, [9], *DOCUMENTS[::-1]]))
    assert data.shard_sizes.tolist() == [5, 1, 5]


def test_what_litdata_wrote_is_read_in_place(tmp_path: Path) -> None:
    """A chunk of litdata.optimize of litdata 0.2.76, of four int32 tensors, and what its index says of the format."""
    head = "04000000180000001c000000240000003000000040000000"
    tokens = [0, 10, 11, 20, 21, 22, 30, 31, 32, 33]
    (tmp_path / "chunk-0-0.bin").write_bytes(bytes.fromhex(head) + np.array(tokens, "<i4").tobytes())
    about = '"config": {"chunk_bytes": null, "compression": null, "data_format": ["no_header_tensor:16"], "encryption": null}'
    (tmp_path / "index.json").write_text('{"chunks": [{"filename": "chunk-0-0.bin"}], ' + about + "}")
    assert equal(list(lk.DocumentDataset(tmp_path)), arrays("int32", [[0], [10, 11], [20, 21, 22], [30, 31, 32, 33]]))


@pytest.mark.parametrize("kind", ["megatron", "litdata"])
def test_the_laws(kind: str, tmp_path: Path) -> None:
    documents = [[number] * (1 + number % 4) for number in range(11)]
    if kind == "megatron":
        write_megatron(tmp_path / "a", documents[:6], "uint16")
        write_megatron(tmp_path / "b", documents[6:], "uint16")
    else:
        write_litdata(tmp_path, [documents[:6], documents[6:]])
    check_laws(lambda: lk.DocumentDataset(tmp_path, transform=with_draws), lambda document: int(document[0]))


def test_a_cut_or_damaged_megatron_index_is_named(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a", DOCUMENTS, "uint16")
    path, tokens = tmp_path / "a.idx", tmp_path / "a.bin"
    whole, content = path.read_bytes(), tokens.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(lk.ShardError, match=r"a\.idx: (begins with|has)"):
            lk.DocumentDataset(tmp_path)
    for place, value, said in (
        (3, b"X", r"begins with b'MMIXIDX"),
        (9, b"\2", "has version 2"),
        (17, b"\6", r"dtype code 6, wanted version 1 and one of \[1, 2"),
        (-8, b"\1", "its documents are the sequences 0 to 1, wanted all"),
    ):
        path.write_bytes(replaced(whole, place, value))
        with pytest.raises(lk.ShardError, match=said):
            lk.DocumentDataset(tmp_path)
    path.write_bytes(whole)
    for cut in range(len(content)):
        tokens.write_bytes(content[:cut])
        with pytest.raises(lk.ShardError, match=r"a\.bin: (cut|has)"):
            lk.DocumentDataset(tmp_path)
    tokens.write_bytes(content)
    bounds = len(whole) - 8 * 6
    for value, said in ((b"\x63", "a document ends at sequence 99 of"), (b"\xff" * 8, "It is damaged")):
        path.write_bytes(replaced(whole, bounds + 8, value))
        with pytest.raises(lk.ShardError, match=said):
            lk.DocumentDataset(tmp_path)[0]
    path.write_bytes(replaced(whole, bounds - 8 * 6, b"\3"))  # where a document begins
    with pytest.raises(lk.ShardError, match=r"a\.idx: a document ends inside a token of 2 bytes"):
        list(lk.DocumentDataset(tmp_path))


def test_a_cut_or_foreign_litdata_chunk_is_named(tmp_path: Path) -> None:
    write_litdata(tmp_path, [DOCUMENTS])
    path = tmp_path / "chunk-0-0.bin"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(lk.ShardError, match=r"chunk-0-0\.bin: its .* bytes are not the .* samples"):
            lk.DocumentDataset(tmp_path)
    changes: list[dict[str, Any]] = [
        {"compression": "zstd"},
        {"data_format": ["int", "jpeg"]},
        {"data_format": ["no_header_tensor:1"]},
    ]
    for change in [*changes, {"encryption": {"algorithm": "fernet"}}]:
        write_litdata(tmp_path, [DOCUMENTS], **change)
        with pytest.raises(lk.ShardError, match=r"a chunk of litdata with .*write_shards"):
            lk.DocumentDataset(tmp_path)
    for content in ("{", "[]", '{"config": {}}', '{"config": {"data_format": null}}'):
        (tmp_path / "index.json").write_text(content)
        with pytest.raises(lk.ShardError, match=r"the index\.json of its folder is not that of litdata"):
            lk.DocumentDataset(tmp_path)


def replaced(content: bytes, place: int, value: bytes) -> bytes:
    place %= len(content)
    return content[:place] + value + content[place + len(value) :]


def llm_c(tokens: list[int], magic: int, version: int, kind: str) -> bytes:
    """A file as llm.c describes it: 256 numbers, of which three say something, then the tokens."""
    return struct.pack("<256i", magic, version, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}{kind}", *tokens)


@pytest.mark.parametrize(
    ("write", "dtype"),
    [
        (lambda tokens: llm_c(tokens, 20240520, 1, "H"), "uint16"),
        (lambda tokens: llm_c(tokens, 20240801, 7, "I"), "uint32"),
        (lambda tokens: struct.pack(f"<{len(tokens)}H", *tokens), None),
    ],
    ids=["llm.c", "llm.c of llama", "nanoGPT"],
)
def test_tokens_without_documents_are_windows(
    write: Callable[[list[int]], bytes], dtype: str | None, tmp_path: Path
) -> None:
    tokens = list(range(1000, 1023))
    (tmp_path / "train.bin").write_bytes(write(tokens))
    data = lk.TokenDataset(tmp_path, length=5, stride=4, dtype=None if dtype else "uint16")
    wanted = [np.array(tokens[start : start + 5], dtype or "uint16") for start in (0, 4, 8, 12, 16)]
    check_reads(data, wanted)
    assert data.left_out == 2
    assert equal(data.read_batch(np.arange(5)).numpy(), np.stack(wanted))


def test_a_cut_file_of_llm_c_is_named(tmp_path: Path) -> None:
    whole, path = llm_c([1, 2, 3], 20240520, 1, "H"), tmp_path / "train.bin"
    for cut in (1024, 1026, 1028):
        path.write_bytes(whole[:cut])
        with pytest.raises(
            lk.ShardError, match=r"train\.bin: has . tokens of uint16 after its header, wanted 3 of uint16"
        ):
            lk.TokenDataset(path, length=1)
    path.write_bytes(whole)
    bare = lk.TokenDataset(path, length=1, dtype="int16")  # a remote file's header would cost a request
    with pytest.raises(lk.ShardError, match=r"train\.bin: has a header of llm\.c, .* Leave dtype= out"):
        bare[0]
    (tmp_path / "more.bin").write_bytes(llm_c([1], 20240801, 7, "I"))
    with pytest.raises(lk.ShardError, match=r"wanted 3 of uint32.* or the shards before it have another dtype"):
        lk.TokenDataset(tmp_path, length=1)
