"""The laws of the state: tiny, plain, and refused by other data."""

import io
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sealed import reseal

from loaderkit.sampling.cursor import Cursor, Identity, Saved, check_resume, pack_state, unpack_state
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.sampling.skips import Skips
from loaderkit.system.state import STATE_VERSION, StateError

IDENTITY = Identity(dataset="10 samples", order="sequential-1", seed=7)
SAVED = Saved(Cursor(), IDENTITY, 8)


@given(
    st.builds(Cursor, epoch=st.integers(0, 2**31 - 1), samples=st.integers(0, 10**15), batches=st.integers(0, 10**15))
)
def test_a_state_goes_through_json_and_weights_only_unchanged(cursor: Cursor) -> None:
    saved = Saved(cursor, IDENTITY, 8, bad=3, judged=10)
    state = pack_state(saved)
    text = json.dumps(state)
    assert len(text) < 1024
    assert unpack_state(json.loads(text)) == saved
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert unpack_state(torch.load(file, weights_only=True)) == saved


def test_what_a_plan_adds_travels_too() -> None:
    saved = Saved(Cursor(epoch=1, samples=2, batches=3, plan=(4, 5)), replace(IDENTITY, block=6), 8)
    assert unpack_state(json.loads(json.dumps(pack_state(saved)))) == saved


def test_golden_state() -> None:
    """The state's form is a public contract: another one needs another version."""
    skips = Skips.of([(1, 24, 32), (4, 0, 7)])
    assert pack_state(Saved(Cursor(epoch=1, samples=20, batches=5), IDENTITY, 8, bad=1, judged=20, skips=skips)) == {
        "version": 3,
        "cursor": {"epoch": 1, "samples": 20, "batches": 5, "plan": []},
        "identity": {"dataset": "10 samples", "order": "sequential-1", "seed": 7, "block": None},
        "step": 8,
        "bad": 1,
        "judged": 20,
        "skipped": [[1, 24, 32], [4, 0, 7]],
        "checksum": "da660c32e5637543",
    }


def test_a_state_from_before_runs_could_skip_is_still_read() -> None:
    old = {
        "version": 3,
        "cursor": {"epoch": 1, "samples": 20, "batches": 5, "plan": []},
        "identity": {"dataset": "10 samples", "order": "sequential-1", "seed": 7, "block": None},
        "step": 8,
        "bad": 1,
        "judged": 20,
        "checksum": "7466a8090de9e7db",
    }
    assert unpack_state(old) == Saved(Cursor(epoch=1, samples=20, batches=5), IDENTITY, 8, bad=1, judged=20)


def test_twenty_skipped_ranges_of_a_large_dataset_stay_under_1_kb() -> None:
    skips = Skips.of((12, 10**9 + 50_000 * row, 10**9 + 50_000 * row + 4096) for row in range(20))
    cursor = Cursor(epoch=12, samples=10**9, batches=250_000)
    saved = Saved(cursor, replace(IDENTITY, dataset="1,000,000,000,000 samples " + "x" * 60), 4096, skips=skips)
    text = json.dumps(pack_state(saved))
    assert len(text) < 1024
    assert unpack_state(json.loads(text)) == saved


@pytest.mark.parametrize(
    "skipped",
    [None, 3, [1], [[1, 2]], [[1, 2, 2]], [[1, 3, 2]], [[-1, 2, 3]], [[1, 2, 4], [1, 4, 5]], [[1, 9, 10], [1, 2, 3]]],
)
def test_damaged_skips_are_refused(skipped: Any) -> None:
    with pytest.raises(StateError, match=r"the state's skipped is .*, wanted a list of \[epoch, start, stop\]"):
        unpack_state(reseal(pack_state(SAVED), skipped=skipped))


@pytest.mark.parametrize("field", ["dataset", "order", "seed"])
def test_another_identity_is_refused_with_both_values_and_the_way_out(field: str) -> None:
    cursor = Cursor(epoch=2, samples=4)
    found = replace(IDENTITY, **{field: 8 if field == "seed" else "other"})
    with pytest.raises(ValueError, match="cannot resume") as caught:
        check_resume(cursor, IDENTITY, found, 10)
    message = str(caught.value)
    assert f"for {field} {getattr(IDENTITY, field)!r}" in message
    assert repr(getattr(found, field)) in message
    assert "loader.seek(epoch=2, samples=4)" in message


def test_a_position_after_the_epochs_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at sample 11, wanted at most 10, all of epoch 2.*loader.seek\(epoch=3\)"):
        check_resume(Cursor(epoch=2, samples=11), IDENTITY, IDENTITY, 10)


@pytest.mark.parametrize("version", [1, STATE_VERSION + 1])
def test_another_version_is_refused(version: int) -> None:
    state = pack_state(SAVED) | {"version": version}
    with pytest.raises(ValueError, match=f"has version {version}, this loaderkit reads version {STATE_VERSION}"):
        unpack_state(state)


@pytest.mark.parametrize("state", [None, [], 3, {}, {"version": 1}, {"epoch": 3, "_iterator": None}])
def test_what_is_not_a_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="not the state of a loaderkit Loader"):
        unpack_state(state)


@pytest.mark.parametrize(
    "broken",
    [{"cursor": 5}, {"cursor": {}}, {"identity": None}, {"identity": {"seed": 7}}, {"cursor": {"epoch": 0, "step": 1}}],
)
def test_a_damaged_state_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="The state is damaged"):
        unpack_state(reseal(pack_state(SAVED), **broken))


def test_an_edited_state_is_refused_by_its_checksum() -> None:
    state = pack_state(SAVED)
    state["cursor"]["samples"] = 3
    with pytest.raises(
        StateError, match=r"checksum is '\w{16}', its fields give '\w{16}'. The state is damaged, or was"
    ):
        unpack_state(state)
    assert unpack_state(reseal(state)).cursor.samples == 3


@pytest.mark.parametrize("value", [-1, 1.0, True, "2", None])
@pytest.mark.parametrize("name", ["epoch", "samples", "batches"])
def test_a_cursor_counts_in_integers(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"cursor: {name} is {value!r}"):
        Cursor(**{name: value})


def test_the_next_epoch_begins_at_its_start() -> None:
    assert Cursor(epoch=3, samples=5, batches=2, plan=(1,)).next_epoch() == Cursor(epoch=4)


class Marked:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def fingerprint(self) -> str:
        return self.mark


def test_a_fingerprint_holds_the_size_and_the_datasets_own_mark() -> None:
    assert fingerprint(object(), 1234) == "1,234 samples"
    assert fingerprint(Marked("abc"), 2) == "2 samples (abc)"
    long, longer = (fingerprint(Marked("x" * count), 2) for count in (5000, 5001))
    assert max(len(long), len(longer)) < 100
    assert long != longer
