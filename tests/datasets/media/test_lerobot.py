"""LeRobot datasets: the frames, windows, tasks and pictures that lerobot's own reader gives."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from media_made import need_decoder
from shards import check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.cli.command import main

FIXTURES = Path(__file__).parents[2] / "fixtures" / "lerobot"
ROOT = FIXTURES / "data"
VALUES: dict[str, list[dict[str, Any]]] = json.loads((FIXTURES / "values.json").read_text())
EPISODES = [5, 8, 4, 3, 7]
DELTAS = {
    "observation.images.top": [-0.2, 0.0, 0.1],
    "observation.state": [-0.1, 0.0],
    "action": [0.0, 0.1, 0.2, 0.3],
    "next.done": [0.1],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "frames": {},
    "windows": {"delta_timestamps": DELTAS},
    "episodes": {"delta_timestamps": DELTAS, "episodes": [1, 3]},
}
OFF = 3.9  # levels of brightness by which decoders differ; frames differ by 8


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample as JSON has it, pictures as the mean brightness of each."""
    found: dict[str, Any] = {}
    for name, value in sample.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == torch.uint8
            found[name] = value.float().mean(dim=(-3, -2, -1)).tolist()
            found[f"{name} shape"] = list(value.shape)
        else:
            found[name] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return found


def check_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        if f"{name} shape" in wanted:
            assert np.abs(np.array(found[name]) - np.array(value)).max() < OFF, name
        else:
            assert found[name] == value, name


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(ROOT, folder / "data"))


def change(path: Path, **columns: Any) -> None:
    table = pq.read_table(path)
    for name, values in columns.items():
        name = name.replace("__", "/")
        table = table.set_column(table.column_names.index(name), name, pa.array(values, table.schema.field(name).type))
    pq.write_table(table, path)


@pytest.mark.parametrize("decoder", ["pyav", "torchcodec"])
@pytest.mark.parametrize("name", SETTINGS)
def test_each_sample_is_that_of_lerobots_own_reader(name: str, decoder: Any) -> None:
    need_decoder(decoder)
    data = lk.LeRobotDataset(ROOT, decoder=decoder, **SETTINGS[name])
    assert len(data) == len(VALUES[name]) == (11 if name == "episodes" else 27)
    check_same(plain(data[5]), VALUES[name][5])
    for found, wanted in zip(data.__getitems__([*reversed(range(len(data)))]), reversed(VALUES[name]), strict=True):
        check_same(plain(found), wanted)


def test_features_have_the_dtypes_and_shapes_that_the_dataset_describes() -> None:
    sample = lk.LeRobotDataset(ROOT)[3]
    found = {name: (str(value.dtype), value.shape) for name, value in sample.items() if name != "task"}
    wanted = {
        name: (str(np.dtype(one["dtype"])), () if one["shape"] == [1] else tuple(one["shape"]))
        for name, one in json.loads((ROOT / "meta" / "info.json").read_text())["features"].items()
        if one["dtype"] not in ("video", "image")
    }
    pictures = {name: found.pop(name) for name in list(found) if found[name][0] == "torch.uint8"}
    assert found == wanted
    assert pictures == {
        "observation.thumb": ("torch.uint8", (3, 4, 6)),
        "observation.images.top": ("torch.uint8", (3, 64, 64)),
        "observation.images.side": ("torch.uint8", (3, 64, 64)),
    }


@settings(max_examples=15)
@given(
    frames=st.lists(st.integers(-9, 9), min_size=1, max_size=5),
    episodes=st.lists(st.sampled_from(range(5)), min_size=1, max_size=4),
    data=st.data(),
)
def test_a_window_is_the_frames_around_within_the_episode(
    frames: list[int], episodes: list[int], data: st.DataObject
) -> None:
    """Border frames stand for those outside, and a mask tells them."""
    deltas = {name: [frame / 10 for frame in frames] for name in ("action", "observation.images.side")}
    dataset = lk.LeRobotDataset(ROOT, deltas, episodes=episodes)
    starts = np.cumsum([0, *EPISODES])
    rows = [(episode, frame) for episode in episodes for frame in range(EPISODES[episode])]
    assert len(dataset) == len(rows)
    picked = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, max_size=5))
    for index, sample in zip(picked, dataset.__getitems__(picked), strict=True):
        episode, frame = rows[index]
        moved = [frame + each for each in frames]
        inside = [starts[episode] + min(max(one, 0), EPISODES[episode] - 1) for one in moved]
        assert sample["index"] == starts[episode] + frame
        assert sample["action"][:, 0].tolist() == inside
        pad = [not 0 <= one < EPISODES[episode] for one in moved]
        assert sample["action_is_pad"].tolist() == sample["observation.images.side_is_pad"].tolist() == pad
        shown = sample["observation.images.side"].float().mean(dim=(1, 2, 3)).numpy()
        assert np.abs(shown - (255 - 8 * np.array(inside))).max() < OFF


def test_the_laws_hold() -> None:
    check_reads(lk.LeRobotDataset(ROOT), lk.LeRobotDataset(ROOT).__getitems__(range(27)))
    deltas = {"observation.images.top": [0.0, 0.1], "action": [-0.1, 0.0]}
    columns = ["index", *deltas]
    check_laws(
        lambda: lk.LeRobotDataset(ROOT, deltas, columns=columns, transform=with_draws), lambda row: int(row["index"])
    )


def test_only_chosen_features_are_read_and_decoded(tmp_path: Path) -> None:
    root = copied(tmp_path)
    shutil.rmtree(root / "videos")
    columns = ["action", "observation.grid"]
    sample = lk.LeRobotDataset(root, {"action": [0.1]}, columns=columns)[3]
    assert list(sample) == [*columns, "action_is_pad", "task"]
    assert sample["action"].tolist() == [[4.0, -4.0]]
    with pytest.raises(lk.ShardError, match=r"observation\.images\.top"):
        lk.LeRobotDataset(root, columns=["observation.images.top"])[3]


def test_shards_of_the_order_are_the_episodes() -> None:
    assert lk.LeRobotDataset(ROOT).shard_sizes.tolist() == EPISODES
    assert lk.LeRobotDataset(ROOT, episodes=[4, 0]).shard_sizes.tolist() == [7, 5]


@pytest.mark.parametrize("cached", [False, True])
def test_a_dataset_is_read_by_url(cached: bool, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    for path in ROOT.rglob("*"):
        if path.is_file():
            fsspec.filesystem("memory").pipe_file(
                f"/{tmp_path.name}/{path.relative_to(ROOT).as_posix()}", path.read_bytes()
            )
    storage = lk.Storage(cache_dir=tmp_path / "copies" if cached else None)
    data = lk.LeRobotDataset(f"memory://{tmp_path.name}", DELTAS, storage=storage)
    for row in (0, 12, 26):
        check_same(plain(data[row]), VALUES["windows"][row])


def test_other_data_windows_and_decoders_have_another_fingerprint(tmp_path: Path) -> None:
    found = {
        lk.LeRobotDataset(ROOT, **each).fingerprint()
        for each in ({}, {"delta_timestamps": DELTAS}, {"episodes": [1]}, {"episodes": [3, 1]}, {"decoder": "pyav"})
    }
    assert len(found) == 4
    assert lk.LeRobotDataset(copied(tmp_path)).fingerprint() in found


def test_preview_shows_the_first_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", str(ROOT), "--samples", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("LeRobotDataset: 27 samples in 5 shards\n")
    assert "observation.images.top" in said
    assert "'pick'" in said


def test_statistics_and_settings_are_at_hand() -> None:
    data = lk.LeRobotDataset(ROOT)
    assert data.info["fps"] == 10
    assert data.stats["action"]["max"] == [26.0, 0.0]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"delta_timestamps": {"action": [0.15]}}, r"'action' are \[0.15\], wanted whole numbers of frames of 1/10 s"),
        ({"delta_timestamps": {"action": []}}, r"'action' are \[\], wanted whole numbers"),
        ({"delta_timestamps": {"act": [0.1]}}, r"has 'act', wanted one of \['action'"),
        ({"columns": ["act"]}, r"columns are \['act'\], wanted some of \['action'"),
        ({"columns": ["index"], "delta_timestamps": {"action": [0.1]}}, r"has 'action', wanted one of \['index'\]"),
        ({"episodes": [5]}, r"episodes are \[5\], wanted numbers from 0 to 4"),
        ({"episodes": [-1]}, r"episodes are \[-1\], wanted numbers from 0 to 4"),
        ({"decoder": "other"}, "decoder is 'other', wanted one of"),
    ],
)
def test_settings_are_checked(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lk.LeRobotDataset(ROOT, **wanted)


def test_another_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    root = copied(tmp_path)
    info = json.loads((root / "meta" / "info.json").read_text())
    (root / "meta" / "info.json").write_text(json.dumps(info | {"codebase_version": "v2.1"}))
    with pytest.raises(lk.ShardError, match=r"of version v2.1, wanted v3.*convert_dataset_v21_to_v30"):
        lk.LeRobotDataset(root)
    (root / "meta" / "info.json").unlink()
    with pytest.raises(lk.ShardError, match=r"data: not a LeRobot dataset, meta/info.json can't be read"):
        lk.LeRobotDataset(root)


@pytest.mark.filterwarnings("ignore:ParquetDataset. .* shards have changed since they were indexed")
def test_what_does_not_fit_together_is_named(tmp_path: Path) -> None:
    """A data file, an episode, or frames of a video at other times than the data say."""
    root = copied(tmp_path)
    episodes = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    change(episodes, **{"videos__observation.images.top__from_timestamp": [0.0, 0.53, 0.0, 0.4, 0.7]})
    data = lk.LeRobotDataset(root)
    assert data[4]["task"] == "pick"
    with pytest.raises(
        lk.ShardError, match=r"images.top.*file-000.mp4: the frame at 0.5300 s begins at 0.5.*tolerance_s"
    ):
        data[5]
    assert len(lk.LeRobotDataset(root, tolerance_s=0.04)[5]["observation.images.top"]) == 3
    (root / "videos" / "observation.images.side" / "chunk-001" / "file-000.mp4").write_bytes(b"short")
    with pytest.raises(lk.ShardError, match=r"images.side/chunk-001/file-000.mp4: "):
        data[26]
    data_file = next((root / "data").rglob("*.parquet"))
    pq.write_table(pq.read_table(data_file).slice(1), data_file)
    with pytest.raises(lk.ShardError, match=r"its data files have 26 frames, its episodes 27 one after another"):
        lk.LeRobotDataset(root)
    change(episodes, episode_index=[0, 1, 2, 4, 3])
    with pytest.raises(lk.ShardError, match=r"table of episodes has 5 rows that are not numbered from 0"):
        lk.LeRobotDataset(root)
