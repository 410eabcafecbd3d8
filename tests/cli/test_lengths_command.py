"""`loaderkit lengths` reports what the plans report."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loaderkit as lk
from loaderkit.cli.command import main

SIZES = np.minimum(np.random.default_rng(0).lognormal(3, 0.8, 500), 300).astype(int)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * int(size), "size": int(size)}) + "\n" for size in SIZES))
    return path


def run(*arguments: object) -> int:
    return main(["lengths", *map(str, arguments)])


def rows(text: str) -> dict[str, list[str]]:
    """Return the table's cells by the row's name."""
    lines = text.split("\n\n")[2].splitlines()[1:]
    return {
        cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in (line.split("  ") for line in lines)
    }


def bars(text: str) -> list[int]:
    """Return the number of samples in each bin of the histogram."""
    return [int(line.split()[-1].replace(",", "")) for line in text.split("\n\n")[1].splitlines()]


def short(sample: dict[str, Any]) -> int:
    return len(sample["text"]) // 10


def test_it_counts_what_the_plans_count(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--batch-size", 8, "--max-tokens", 600, "--row-length", 100, "--window", 200, "--jobs", 1)
    assert run(texts, "--column", "text", *settings, "--ranks", 3, "--epoch", 3, "--seed", 4) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"500 samples, {SIZES.sum():,} tokens: shortest {SIZES.min()}, median ")
    counts = bars(text)
    assert sum(counts) == len(SIZES)
    drawn = [line.count("#") for line in text.split("\n\n")[1].splitlines()]
    assert drawn == [-(-40 * samples // max(counts)) for samples in counts]
    found = rows(text)
    more: dict[str, Any] = {"window": 200, "tail": "drop", "seed": 4}
    for name, plan in {
        "LengthBuckets(batch_size=8)": lk.LengthBuckets(SIZES, 8, **more),
        "TokenBudget(max_tokens=600)": lk.TokenBudget(SIZES, 600, too_long="drop", **more),
        'PackPlan(row_length=100, batch_size=6, too_long="split")': lk.PackPlan(
            SIZES, 100, 6, too_long="split", **more
        ),
    }.items():
        summary = plan.with_world(lk.World(0, 3)).summary(3)
        assert found[name] == [
            f"{summary.padded_to_real:.4f}",
            f"{summary.batches:,}",
            f"{summary.mean_batch:,.0f}",
            f"{summary.max_batch:,}",
            f"{summary.left_out:,}",
            f"{summary.rank_spread:.2%}",
        ], name
    keys = [lk.Loader(range(500), 8, shuffle=True, seed=4).indices(3, batch) for batch in range(60)]
    padded = sum(8 * SIZES[key].max() for key in keys)
    assert found["random batches"][0] == f"{padded / SIZES[np.concatenate(keys)].sum():.4f}"
    assert found["random batches"][1] == "20"
    assert found["random batches"][4] == "20"


@pytest.mark.parametrize(("row_length", "longer"), [(100, (SIZES > 100).sum()), (SIZES.max() - 1, 1), (300, 0)])
def test_it_says_what_dropping_long_samples_would_lose(
    texts: Path, capsys: pytest.CaptureFixture[str], row_length: int, longer: int
) -> None:
    assert run(texts, "--column", "text", "--row-length", row_length, "--jobs", 1) == 0
    text = capsys.readouterr().out
    dropped = lk.PackPlan(SIZES, row_length, too_long="drop", shuffle=False).summary().tokens
    lost = 1 - dropped / SIZES.sum()
    assert ("too_long=" in text) == (longer > 0)
    if longer:
        what = "1 sample is" if longer == 1 else f"{longer} samples are"
        assert f'\n{what} longer than a row. too_long="split" cuts' in text
        assert f"would lose {lost:.1%} of the tokens." in text


@pytest.mark.parametrize(
    ("how", "first"), [(("--column", "size"), SIZES), (("--length", f"{__name__}:short"), SIZES // 10)]
)
def test_a_column_or_a_function_says_the_length(
    texts: Path, capsys: pytest.CaptureFixture[str], how: tuple[str, ...], first: Any
) -> None:
    assert run(texts, *how, "--jobs", 2) == 0
    assert f" {first.sum():,} tokens" in capsys.readouterr().out


def test_a_sample_of_a_billion_tokens_takes_no_longer(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_text(texts.read_text() + json.dumps({"text": "", "size": 10**9}) + "\n")
    began = time.process_time()
    assert run(texts, "--column", "size", "--jobs", 1) == 0
    assert time.process_time() - began < 10
    assert "PackPlan(row_length=1,000,000,000" in capsys.readouterr().out


def test_it_draws_a_picture_and_keeps_the_lengths(texts: Path, tmp_path: Path) -> None:
    picture, cache = tmp_path / "lengths.png", tmp_path / "lengths.npz"
    assert run(texts, "--column", "text", "--plot", picture, "--cache", cache) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert lk.measure_lengths(lk.JsonlDataset(texts), "text", cache=cache).tolist() == SIZES.tolist()


def test_the_picture_says_the_batches_of_each_rank(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *more, **how: (drawn.append(figure), save(figure, *more, **how))
    )
    assert (
        run(texts, "--column", "text", "--batch-size", 8, "--ranks", 2, "--plot", tmp_path / "a.png", "--jobs", 1) == 0
    )
    _, right = drawn[0].axes
    assert "on each of 2 ranks" in right.get_title(loc="left")
    batches = lk.LengthBuckets(SIZES, 8, tail="drop").with_world(lk.World(0, 2)).batches(0)
    assert [text.get_text().split("\n ")[1] for text in right.texts][:2] == ["31 batches", f"{batches} batches"]


@pytest.mark.parametrize("sizes", [[3], [0, 1, 2], [0] * 50])
def test_few_samples_or_empty_ones_are_drawn_too(sizes: list[int], tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * size}) + "\n" for size in sizes))
    assert run(path, "--column", "text", "--plot", tmp_path / "few.png", "--jobs", 1) == 0
    assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("sizes", [[0], [5], [0, 0, 1], [1, 2, 3], [7] * 9, list(range(2000)), [1, 10**6]])
def test_each_sample_is_in_one_bin(sizes: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sizes.jsonl"
    path.write_text("".join(json.dumps({"size": size}) + "\n" for size in sizes))
    assert run(path, "--column", "size", "--jobs", 1) == 0
    found = bars(capsys.readouterr().out)
    assert sum(found) == len(sizes)
    assert len(found) <= 17


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing-*.jsonl",), "nothing-"),
        (("--column", "txt"), "txt"),
        ((), "say which one counts, --column FIELD"),
        (("--length", "math:sinus"), "can't be loaded"),
    ],
)
def test_what_fails_is_said(
    texts: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    source = arguments if arguments and "*" in arguments[0] else (texts, *arguments)
    assert run(*source, "--jobs", 1) == 1
    found = capsys.readouterr().err
    assert found.startswith("loaderkit lengths: ")
    assert message in found
