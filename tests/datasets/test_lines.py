"""Lines and spans of bytes in a shard: found and read as Python's own methods would."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tier import examples

import loaderkit as lk
from loaderkit.datasets.shards.lines import LineFile, scan_lines

BOM = b"\xef\xbb\xbf"


@settings(max_examples=examples(60))
@given(
    st.lists(st.sampled_from([b"1", b'"a b"', b"\n", b"\r\n", b" ", b"\t", b"\0", BOM, b"[2]"])),
    st.integers(1, 9),
)
def test_lines_are_found_wherever_a_block_ends(parts: list[bytes], block: int) -> None:
    """Compared with split() and strip()."""
    content = b"".join(parts)
    spans = scan_lines("x.jsonl", io.BytesIO(content), block=block)
    wanted = [line for line in content.removeprefix(BOM).split(b"\n") if line.strip(b" \t\r")]
    assert [content[start:end] for start, end in spans.tolist()] == wanted


@pytest.mark.parametrize(("gap", "run"), [(0, 1), (3, 1000), (7, 40), (1000, 1000)])
@pytest.mark.parametrize("real", [True, False])
def test_spans_are_those_of_the_file(gap: int, run: int, real: bool, tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(300)
    (tmp_path / "x").write_bytes(content)
    file = LineFile("x", (tmp_path / "x").open("rb") if real else io.BytesIO(content), gap=gap, run=run)
    draw = np.random.default_rng(gap * 10_000 + run)
    for size in (0, 1, 2, 5, 30):
        starts = draw.integers(0, 280, size).tolist()
        ends = [start + int(draw.integers(0, 20)) for start in starts]
        wanted = [content[start:end] for start, end in zip(starts, ends, strict=True)]
        assert file.read(starts, ends) == wanted
        found, begins = file.read_together(starts, ends)
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        assert [bytes(found[at : at + size]) for at, size in zip(begins, lengths, strict=True)] == wanted
    with pytest.raises(lk.ShardError, match="x: ends at byte 300, the index has samples up to 301 at least"):
        file.read([0, 290], [10, 301])
    file.close()
