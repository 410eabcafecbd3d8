"""`loaderkit bench` measures each setting and recommends the fewest workers that are as fast as the fastest."""

import csv
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import loaderkit as lk
from loaderkit.cli.bench.measure import Cost, Costs, Measured, advise, measure_costs, settings_of, turns
from loaderkit.cli.bench.report import Report
from loaderkit.cli.bench.subject import INLINE, Setting, Subject, subject_of
from loaderkit.cli.command import main


class Slow:
    """Samples that take 2 ms, some of them longer."""

    def __init__(self, size: int = 400, *, every: int = 0, seconds: float = 0.002) -> None:
        self.size, self.every, self.seconds = size, every, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(10 * self.seconds if self.every and index % self.every == 0 else self.seconds)
        return {"x": np.zeros((4, 4), np.float32), "y": index}


class Truncated(Slow):
    def __getitem__(self, index: int) -> dict[str, Any]:
        raise OSError("truncated")


class Empty(list[int]):
    """A dataset without samples."""


class Five:
    """No dataset."""


class Unbound(Slow):
    """A dataset that does not pickle."""

    def __init__(self) -> None:
        super().__init__()
        self.function = lambda: None


def in_memory() -> lk.ArrayDataset:
    return lk.ArrayDataset({"x": torch.zeros(1000, 8)})


def loader() -> lk.Loader:
    return lk.Loader(Slow(), 8, num_workers=1, engine="ring", shuffle=True)


def alone() -> lk.Loader:
    return lk.Loader(Slow(), 8, engine="inline")


def data_module() -> lk.DataModule:
    return lk.DataModule(Slow, loader=lk.LoaderConfig(batch_size=8))


def data_loader() -> Any:
    return torch.utils.data.DataLoader(Slow(), 8, shuffle=True)


NO_FUNCTION = [1, 2, 3]


def planned() -> lk.Loader:
    lengths = np.arange(400) % 7 + 1
    return lk.Loader(Slow(), plan=lk.TokenBudget(lengths, 64))


def samples_of(shard: str) -> Iterator[dict[str, int]]:
    time.sleep(0.001)
    return iter([{"y": row} for row in range(200)])


def stream() -> lk.StreamDataset:
    return lk.StreamDataset([str(number) for number in range(8)], lk.from_start(samples_of))


def raises() -> None:
    raise KeyError("no such table")


def two() -> Any:
    return lk.DataModule({"a": Slow(), "b": Slow()})


def run(name: str, *arguments: object) -> int:
    return main(["bench", f"{__name__}:{name}", *map(str, arguments)])


def table(text: str) -> dict[tuple[str, str], list[str]]:
    """Return the throughput table's cells by engine and workers."""
    lines = text.split("\n\n")[1].splitlines()[1:]
    return {(cells[0], cells[1]): cells[2:] for cells in (line.split() for line in lines)}


def test_it_measures_advises_draws_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, numbers = tmp_path / "bench.png", tmp_path / "bench.csv"
    assert run("loader", "--workers", "0,2", "--seconds", 3, "--rounds", 1, "--plot", picture, "--csv", numbers) == 0
    text = capsys.readouterr().out
    assert text.startswith("Slow, 400 samples; 50 batches an epoch, of 8; ")
    found = table(text)
    assert set(found) == {("inline", "0"), ("torch", "2"), ("ring", "2")}
    assert 50 < float(found["inline", "0"][0].replace(",", "")) <= 500  # 2 ms a sample
    assert "not measured: no CUDA" in text or torch.cuda.is_available()
    assert "\nrecommended: engine=" in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    with numbers.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["what"] for row in rows} >= {"throughput", "first batch", "read", "collate", "transport (ring)", "copy"}
    medians = [float(row["value"]) for row in rows if row["engine"] == "inline" and row["unit"] == "samples/s"]
    assert float(found["inline", "0"][0].replace(",", "")) == pytest.approx(np.median(medians), abs=1)


@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("Slow", "of 32"),
        ("in_memory", "of 32"),
        ("alone", "of 8"),
        ("data_module", "of 8"),
        ("data_loader", "of 8"),
        ("planned", "by a plan"),
        ("stream", "of 32"),
    ],
)
def test_it_takes_loaders_modules_datasets_and_streams(
    name: str, batches: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, "--workers", "0", "--engines", "inline", "--seconds", 0.4, "--rounds", 1) == 0
    text = capsys.readouterr().out
    assert batches in text.splitlines()[0]
    assert 'recommended: engine="inline", num_workers=0' in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Empty",), "is empty: 0 samples"),
        (("Five",), "of type Five, wanted a Loader, a DataModule with one training dataset, or a dataset"),
        (("two",), "of type dict, wanted a Loader"),
        (("raises",), "KeyError: 'no such table'"),
        (("Truncated",), "OSError: truncated\n  "),
        (("Truncated",), "in __getitem__\n  loaderkit: raised while reading sample"),
        (("nothing",), "has no attribute 'nothing'"),
        (("NO_FUNCTION",), ":NO_FUNCTION' is of type list, wanted a function or class that returns a dataset"),
        (("Slow", "--engines", "inline", "--workers", "2"), "nothing to measure"),
        (("planned", "--batch-size", "4"), "leave out --batch-size"),
    ],
)
def test_what_fails_is_said(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments, "--seconds", 0.4) == 1
    found = capsys.readouterr().err
    assert found.startswith("loaderkit bench: ")
    assert message in found


def test_a_setting_that_fails_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("Unbound", "--workers", "0,1", "--engines", "inline,ring", "--seconds", 0.5, "--rounds", 1, "--spawn") == 0
    )
    text = capsys.readouterr().out
    assert table(text)["ring", "1"] == ["failed"]
    assert 'failed: engine="ring", num_workers=1: ' in text
    assert 'recommended: engine="inline"' in text


def test_rounds_that_the_time_limit_cut_off_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Slow", "--workers", "0,1,2,3", "--engines", "inline,ring", "--seconds", 0.01) == 1
    text = capsys.readouterr().out
    assert len(table(text)) == 4
    assert "1 of 5 rounds, then the time was over.\n" in text
    assert "recommended: nothing, because 3 rounds are needed. Give more --seconds." in text


def measured(*rates: float) -> Measured:
    return Measured(rates=dict(enumerate(rates)), first_s=[0.1] * len(rates))


@pytest.mark.parametrize(
    ("rates", "wanted"),
    [
        ({INLINE: (100, 101, 99), Setting(1, "ring"): (90, 91, 92)}, INLINE),
        (
            {INLINE: (50, 51, 49), Setting(1, "ring"): (90, 91, 92), Setting(2, "ring"): (92, 94, 93)},
            Setting(1, "ring"),
        ),
        (
            {INLINE: (50, 51, 49), Setting(1, "ring"): (70, 71, 72), Setting(2, "ring"): (92, 94, 93)},
            Setting(2, "ring"),
        ),
        ({Setting(1, "ring"): (90, 91, 92), Setting(1, "torch"): (92, 94, 93)}, Setting(1, "torch")),
        ({INLINE: (60, 90, 120), Setting(4, "ring"): (66, 99, 132)}, INLINE),  # 10 % among rounds that vary by 33 %
        ({INLINE: (50, 150), Setting(1, "ring"): (100, 50)}, INLINE),
        ({INLINE: (90, 10, 10), Setting(1, "ring"): (90, 100, 9)}, Setting(1, "ring")),
        ({INLINE: (), Setting(1, "ring"): (100, 50)}, Setting(1, "ring")),
    ],
)
def test_the_advice_is_the_fewest_workers_within_the_noise(
    rates: dict[Setting, tuple[float, ...]], wanted: Setting
) -> None:
    found = {setting: measured(*some) for setting, some in rates.items()}
    advice = advise(found)
    assert advice is not None
    assert advice.setting == wanted
    if not all(rates.values()):
        return  # too little for a report's recommendation
    costs = Costs([Cost("read", 0.001)], "samples", [])
    said = next(line for line in Report("x", 8, 1, found, costs).lines() if line.startswith("recommended"))
    assert str(wanted) in said
    assert ("the noise" in said) == (advice.setting != advice.fastest)


@pytest.mark.parametrize(("rounds", "enough"), [(1, True), (3, True), (4, False), (5, False)])
def test_a_recommendation_needs_three_complete_rounds_or_all(rounds: int, enough: bool) -> None:
    done = min(rounds, 3) if enough else 2
    found = {INLINE: measured(*[10.0] * done), Setting(1, "ring"): measured(*[50.0] * done)}
    report = Report("x", 8, rounds, found, Costs([Cost("read", 0.001)], "samples", []))
    assert (report.advice is not None) == enough
    assert any(line.startswith("recommended: engine=") for line in report.lines()) == enough


def test_a_failed_setting_does_not_count_as_a_missing_round() -> None:
    found = {INLINE: measured(10.0, 11.0, 12.0), Setting(1, "ring"): Measured(error="KeyError: 1")}
    assert Report("x", 8, 5, found, Costs([Cost("read", 0.001)], "samples", [])).advice is not None


def test_the_columns_agree() -> None:
    """Rounds differ, so the median of ratios is not the ratio of medians."""
    found = {INLINE: measured(10.0, 20.0, 40.0), Setting(1, "ring"): measured(40.0, 30.0, 20.0)}
    lines = Report("x", 8, 3, found, Costs([Cost("read", 0.001)], "samples", [])).lines()
    rows = table("\n".join(lines))
    assert rows["inline", "0"][:3] == ["160", "20.0", "1.00"]
    assert rows["ring", "1"][:3] == ["240", "30.0", "1.50"]


def test_no_workers_are_recommended_without_a_measurement() -> None:
    assert advise({INLINE: Measured(error="KeyError: 1")}) is None


def test_the_cost_is_split_into_its_parts() -> None:
    """A batch takes 8 ms to read and 5 ms to collate, and on a busy machine a few times as long."""

    def collate(samples: list[Any]) -> Any:
        time.sleep(0.005)
        return torch.zeros(4)

    subject = Subject(Slow(seconds=0.002), lk.LoaderConfig(batch_size=4, collate_fn=collate))
    costs = measure_costs(subject, ["inline", "torch", "ring"], seconds=1.5)
    parts = {cost.part: cost.seconds for cost in costs.parts}
    assert list(parts) == ["read", "collate", "transport (torch)", "transport (ring)", "pin", "copy"]
    assert (parts["read"] or 0) >= 0.008
    assert (parts["collate"] or 0) >= 0.005
    for engine in ("torch", "ring"):
        assert (parts[f"transport ({engine})"] or 0) >= 0
    assert costs.unit == "samples"
    if not torch.cuda.is_available():
        assert parts["pin"] is None
        assert parts["copy"] is None


def test_a_dataset_that_reads_batches_has_one_cost_for_both() -> None:
    costs = measure_costs(Subject(in_memory(), lk.LoaderConfig(batch_size=32)), ["inline"], seconds=0.2)
    assert [cost.part for cost in costs.parts][:2] == ["read and collate", "pin"]
    assert costs.unit == "batches"


def test_stragglers_are_samples_that_take_five_times_the_median() -> None:
    even, uneven = [0.001] * 100, [0.001] * 94 + [0.02] * 6
    assert Costs([], "samples", even).stragglers() is None
    assert Costs([], "samples", uneven).stragglers() == (0.02, 0.001)
    assert Costs([], "samples", uneven[-10:]).stragglers() is None  # too few to judge
    report = Report("x", 8, 1, {INLINE: measured(1.0)}, Costs([Cost("read", 0.001)], "samples", uneven))
    assert any("Stragglers: the slowest 5 % of samples take " in line for line in report.lines())


def test_the_time_of_each_sample_is_measured() -> None:
    data = torch.utils.data.Subset(Slow(every=16, seconds=0.001), range(400))  # its __getitems__ is a loop
    costs = measure_costs(Subject(data, lk.LoaderConfig(batch_size=8)), ["inline"], seconds=1.2)
    assert costs.unit == "samples"
    assert len(costs.times_s) >= 16
    assert max(costs.times_s) > 4 * min(costs.times_s)


def test_two_workers_are_found_to_be_twice_as_fast() -> None:
    """Samples that sleep need no CPU, so this holds on any machine."""
    settings = [INLINE, Setting(2, "ring")]
    for _ in range(3):  # a busy machine may delay a run
        *_, found = turns(subject_of(loader(), batch_size=None, spawn=False), settings, seconds=3, rounds=2)
        ratio = found[settings[1]].ratio_to(found[INLINE])
        if 1.6 < ratio < 2.4:
            break
    assert 1.6 < ratio < 2.4
    advice = advise(found)
    assert advice is not None
    assert advice.setting == settings[1]


def test_each_engine_has_the_workers_that_it_can_have() -> None:
    assert [str(setting) for setting in settings_of(["inline", "ring"], [2, 0, 2])] == [
        'engine="inline", num_workers=0',
        'engine="ring", num_workers=2',
    ]


def test_on_a_terminal_the_table_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    found = {INLINE: measured(10.0, 11.0), Setting(1, "ring"): Measured(error="x")}
    lines = Report("x", 8, 2, found, Costs([Cost("read", 0.001)], "samples", [])).lines()
    assert any("─" in line for line in lines)
    assert any("failed" in line for line in lines)


def test_a_streams_workers_are_measured_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A stream's workers are torch's with any engine."""
    assert run("stream", "--workers", "0,1", "--seconds", 0.5, "--rounds", 1) == 0
    assert set(table(capsys.readouterr().out)) == {("inline", "0"), ("torch", "1")}


def test_settings_for_workers_are_dropped_when_there_are_no_workers() -> None:
    loader = lk.Loader(list(range(8)), 2, num_workers=1, timeout=60, prefetch_factor=3, multiprocessing_context="fork")
    subject = subject_of(loader, batch_size=None, spawn=False)
    assert len(list(subject.loader(INLINE))) == 4
    assert subject.loader(Setting(2, "ring")).config.timeout == 60
