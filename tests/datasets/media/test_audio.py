"""Audio: any part of any format is that part of the whole, each clip comes once, and damage is an error."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import changed_bytes, cuts, flips, outcomes
from drawing import equal
from media_made import LOSSLESS, LOSSY, RATE, audio, encode_audio, samples, write
from tars_made import make as make_tar

import loaderkit as lk
from loaderkit import testing

SECONDS = 2.013
FORMATS = LOSSLESS | LOSSY


def rate_of(kind: str) -> int:
    return 48000 if FORMATS[kind] == "libopus" else RATE


def folder_of(path: Path, seconds: Sequence[float] = (2.0, 0.5, 3.1, 1.0, 1.7, 0.9, 2.2)) -> Path:
    return write(path, **{f"{n}_wav": audio("wav", length, n) for n, length in enumerate(seconds)})


@pytest.mark.parametrize("kind", FORMATS)
def test_a_part_is_that_part_of_the_whole(decoder: Any, kind: str, tmp_path: Path) -> None:
    path, rate = tmp_path / f"a.{kind}", rate_of(kind)
    path.write_bytes(audio(kind, SECONDS, channels=2, rate=rate))
    whole = lk.AudioDataset(str(path), decoder=decoder)[0]["waveform"]
    given = torch.from_numpy(samples(SECONDS, channels=2, rate=rate)) / 32768
    assert whole.dtype == torch.float32
    assert (
        whole.is_contiguous()
    )  # else the engines' batches would differ in layout, and a network's results in the last bits
    assert abs(whole.shape[1] / rate - SECONDS) < 0.2
    if kind in LOSSLESS:
        assert torch.equal(whole, given)
    clips = lk.AudioDataset(str(path), clip_s=0.3, clips="all", cache_dir=None, decoder=decoder)
    assert len(clips) == (8 if kind == "aac" else 7)
    parts = [sample["waveform"][:, : sample["length"]] for sample in clips]
    # WebM rounds times to a millisecond, and torchcodec finds samples by them alone.
    most = rate // 1000 if (kind, decoder) == ("webm", "torchcodec") else 0
    for number, part in enumerate(parts):
        starts = [round(number * 0.3 * rate) + shift for shift in range(-most, most + 1)]
        around = [whole[:, start:][:, : part.shape[1] - most] for start in starts if start >= 0]
        assert any(torch.allclose(part[:, : each.shape[1]], each, atol=1e-6) for each in around)
    assert whole.shape[1] - sum(part.shape[1] for part in parts) < 0.25 * rate


@pytest.mark.parametrize(
    ("codec", "exact"), [("u8", 1 / 128), ("s24le", 0.0), ("s32le", 0.0), ("f32le", 0.0), ("f64le", 0.0)]
)
def test_any_format_of_samples_goes_from_minus_1_to_1(decoder: Any, codec: str, exact: float) -> None:
    wave = samples(0.5, channels=2)
    content = encode_audio("wav", wave, codec=f"pcm_{codec}")
    found = lk.AudioDataset([{"wav": content}], decoder=decoder)[0]["waveform"]
    assert found.shape == wave.shape
    assert float((found - torch.from_numpy(wave) / 32768).abs().max()) <= exact


def test_the_ends_of_files_without_an_index_are_read(decoder: Any) -> None:
    """FFmpeg's seek fails at some of them."""
    for number in range(16):
        wave = samples(1 + number / 9, seed=number)
        clips = lk.AudioDataset(
            [{"flac": encode_audio("flac", wave)}], clip_s=0.5, clips="all", cache_dir=None, decoder=decoder
        )
        found = np.concatenate([clip["waveform"][:, : clip["length"]] for clip in clips], axis=1)
        assert np.array_equal(found, wave[:, : found.shape[1]] / np.float32(32768))


def test_a_resampled_tone_has_its_pitch(decoder: Any, tmp_path: Path) -> None:
    tone = (np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE) * 20000).astype(np.int16)
    write(tmp_path, a_flac=encode_audio("flac", np.stack([tone, tone // 2])))
    sample = lk.AudioDataset(tmp_path, sample_rate=22050, mono=True, decoder=decoder)[0]
    wave = sample["waveform"]
    assert (tuple(wave.shape), sample["sample_rate"]) == ((1, 44100), 22050)
    assert int(torch.fft.rfft(wave[0]).abs().argmax()) / 2 == 440
    assert float(wave.abs().max()) == pytest.approx(0.75 * 20000 / 32768, rel=0.02)


def test_a_clip_is_as_long_as_asked_and_says_what_is_sound(decoder: Any, tmp_path: Path) -> None:
    dataset = lk.AudioDataset(folder_of(tmp_path), clip_s=1.5, clips="middle", sample_rate=16000, decoder=decoder)
    batch = next(iter(lk.Loader(dataset, batch_size=7)))
    assert batch["waveform"].shape == (7, 1, 24000)
    assert batch["length"].tolist() == [24000, 8000, 24000, 16000, 24000, 14400, 24000]
    for wave, length in zip(batch["waveform"], batch["length"].tolist(), strict=True):
        assert not wave[:, length:].any()
        assert wave[:, :length].any()


def labelled(folder: Path, **settings: Any) -> lk.AudioDataset:
    paths = sorted(map(str, folder.glob("*")))
    return lk.AudioDataset(paths, labels=range(len(paths)), **settings)


def ids(batch: dict[str, Any]) -> Any:
    return batch["label"].tolist()


def test_a_random_clip_belongs_to_the_seed(decoder: Any, tmp_path: Path) -> None:
    """Exactly once, resumed, on other ranks, with workers of any kind."""
    data = labelled(folder_of(tmp_path), clip_s=0.4, decoder=decoder)

    def make(**settings: Any) -> Any:
        return lk.Loader(data, **{"batch_size": 2, "shuffle": True, "seed": 3} | settings)

    testing.assert_exactly_once(make, worlds=(1, 2, 3), samples=7, ids=ids)
    testing.assert_resumable(make, epochs=1, ids=ids)
    settings = [{"world_size": 1}, {"world_size": 2}, {"batch_size": 3}]
    testing.assert_elastic(make, settings, stops=[1], samples=7, ids=ids)
    testing.assert_epochs_differ(make)
    engines = [{"engine": engine, "num_workers": 2} for engine in ("threads", "ring", "torch")]
    whole = list(make())
    assert len(whole) == 4
    assert all(equal(list(make(**each)), whole) for each in engines)


def test_a_random_clip_begins_anywhere_in_its_file(decoder: Any, tmp_path: Path) -> None:
    """Each epoch at another place; another seed gives others."""
    rising = np.arange(2 * RATE, dtype=np.int16)
    clips = lk.AudioDataset(write(tmp_path, a_wav=encode_audio("wav", rising[None])), clip_s=0.5, decoder=decoder)

    def starts(seed: int) -> list[int]:
        loader, found = lk.Loader(clips, seed=seed), []
        for _ in range(30):
            [batch] = list(loader)
            values = (batch["waveform"][0, 0] * 32768).int().tolist()
            assert values == list(range(values[0], values[0] + RATE // 2))
            found.append(values[0])
        return found

    found = starts(0)
    assert len(set(found)) > 25
    assert min(found) < 3000
    assert max(found) > 9000
    assert found == starts(0) != starts(1)


@pytest.mark.slow
def test_workers_that_start_in_any_way_read_the_same_clips(decoder: Any, tmp_path: Path) -> None:
    data = labelled(folder_of(tmp_path), clip_s=0.4, decoder=decoder)
    testing.assert_workers_dont_matter(
        lambda **settings: lk.Loader(data, 2, shuffle=True, **settings),
        start_methods=("fork", "forkserver", "spawn"),
        ids=ids,
    )


@pytest.mark.parametrize("clips", ["random", "all"])
def test_tar_shards_give_the_samples_of_their_files(decoder: Any, clips: Any, tmp_path: Path) -> None:
    files = folder_of(tmp_path / "files")
    members = [(f"{path.stem}.wav", path.read_bytes()) for path in sorted(files.iterdir())]
    labels = [(f"{path.stem}.cls", b"%d" % number) for number, path in enumerate(sorted(files.iterdir()))]
    both = [member for pair in zip(members, labels, strict=True) for member in pair]
    (tmp_path / "tars").mkdir()
    make_tar(tmp_path / "tars" / "a.tar", both[:8])
    make_tar(tmp_path / "tars" / "b.tar", both[8:])
    from_tar = lk.AudioDataset(
        lk.TarDataset(tmp_path / "tars"), clip_s=0.5, clips=clips, cache_dir=None, decoder=decoder
    )
    from_files = labelled(files, clip_s=0.5, clips=clips, cache_dir=None, decoder=decoder)
    assert from_tar.shard_sizes.sum() == len(from_tar) == len(from_files)
    batches = [list(lk.Loader(data, 3)) for data in (from_tar, from_files)]
    assert equal([batch["waveform"] for batch in batches[0]], [batch["waveform"] for batch in batches[1]])
    assert [batch["cls"].tolist() for batch in batches[0]] == [batch["label"].tolist() for batch in batches[1]]
    assert sorted(batches[0][0]) == ["__key__", "cls", "length", "sample_rate", "waveform"]
    assert "shard" in str(lk.Loader(from_tar, 3, shuffle=True).describe())


def test_folders_are_classes(tmp_path: Path) -> None:
    for name in ("yes", "no", "no/deep"):
        write(tmp_path / name, a_wav=audio("wav", 0.5), b_FLAC=audio("flac", 0.5), notes_txt=b"")
    write(tmp_path, stray_wav=audio("wav", 0.5))
    data = lk.AudioDataset(tmp_path, labels="folder")
    assert data.classes == ["no", "yes"]
    assert [sample["label"] for sample in data] == [0, 0, 0, 0, 1, 1]


def test_lengths_are_those_of_the_waveforms(decoder: Any, tmp_path: Path) -> None:
    for kind in FORMATS:
        write(tmp_path, **{f"a_{kind}": audio(kind, SECONDS, rate=rate_of(kind))})
    write(tmp_path, b_wav=audio("wav", 0.7))
    data = lk.AudioDataset(tmp_path, sample_rate=RATE, cache_dir=None, decoder=decoder)
    lengths = data.lengths()
    assert [sample["waveform"].shape[1] for sample in data] == lengths.tolist()
    assert len(lengths) == len(FORMATS) + 1
    clips = lk.AudioDataset(tmp_path, clip_s=0.5, clips="all", cache_dir=None, decoder=decoder)
    assert [sample["waveform"].shape[1] for sample in clips] == clips.lengths().tolist()
    plan = lk.TokenBudget(lengths, max_tokens=3 * int(lengths.max()))
    collate = lk.PadCollate({"waveform": lk.Pad(dims=1, lengths=True)})
    batches = list(lk.Loader(data, plan=plan, collate_fn=collate))
    assert sorted(n for batch in batches for n in batch["waveform_lengths"].flatten().tolist()) == sorted(
        lengths.tolist()
    )
    assert max(batch["waveform"].numel() for batch in batches) <= plan.max_tokens


def test_times_are_kept_and_read_again_if_a_file_changes(tmp_path: Path) -> None:
    files, cache = folder_of(tmp_path / "files"), tmp_path / "cache"

    def open_all() -> lk.AudioDataset:
        return lk.AudioDataset(files, clip_s=0.5, clips="all", cache_dir=cache)

    first = open_all()
    (kept,) = cache.iterdir()
    content, changed = kept.read_bytes(), kept.stat().st_mtime_ns
    assert np.array_equal(open_all().times(), first.times())
    assert kept.stat().st_mtime_ns == changed
    for damaged in (b"", content[:50], content[:-40], bytes(len(content))):
        kept.write_bytes(damaged)
        assert len(open_all()) == len(first)
        assert kept.read_bytes() != damaged
    (files / "1.wav").write_bytes(audio("wav", 2.0))
    assert len(open_all()) == len(first) + 3
    assert all(path.suffix == ".npz" for path in cache.iterdir())


@pytest.mark.parametrize("cached", [False, True])
def test_files_in_an_object_store_are_read_as_local_ones(decoder: Any, cached: bool, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    folder, root = folder_of(tmp_path / "files"), f"/{tmp_path.name}-{cached}"
    for path in folder.iterdir():
        fsspec.filesystem("memory").pipe_file(f"{root}/{path.name}", path.read_bytes())
    storage = lk.Storage(cache_dir=tmp_path / "cache" if cached else None)
    settings: dict[str, Any] = {"clip_s": 0.5, "clips": "all", "cache_dir": tmp_path / "times"}
    remote = lk.AudioDataset(f"memory:/{root}", storage=storage, **settings, decoder=decoder)
    local = lk.AudioDataset(folder, **settings, decoder=decoder)
    assert len(remote) == len(local) > 7
    assert equal(list(remote), list(local))
    assert remote.fingerprint() == local.fingerprint()


def test_times_are_read_by_processes(tmp_path: Path) -> None:
    files = folder_of(tmp_path)
    one, two = (lk.AudioDataset(files, cache_dir=None, jobs=jobs).times() for jobs in (1, 2))
    assert np.array_equal(one, two)
    assert one[1].tolist() == [0.5, RATE]


CHECKED = {"flac", "m4a", "mka", "aiff", "webm"}  # formats that say how long they are


def read(content: bytes, decoder: Any) -> list[float]:
    class One:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return {"sound": content}

    wave = lk.AudioDataset(One(), field="sound", decoder=decoder)[0]["waveform"]
    assert torch.isfinite(wave).all()
    return [*wave.shape, float(wave.double().sum())]


@pytest.mark.each_value
@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_audio_is_decoded_or_an_error(decoder: Any, kind: str, request: pytest.FixtureRequest) -> None:
    content = audio(kind, 1.5, rate=rate_of(kind))
    cases = [*cuts(content, 30), *changed_bytes(content, range(4, 64, 9))]
    cases += flips(content, int(request.config.getoption("--flips")) // 10)
    found = outcomes(partial(read, decoder=decoder), cases, (ValueError,))
    assert len(found) == len(cases)
    assert sum(isinstance(result, str) for result in found.values()) > 9
    shown = (
        1.0 if kind == "wav" else 0.6 if kind in CHECKED else 0.0
    )  # the share of a file that is noticed if it is all
    for name, case in cases:
        if len(case) < shown * len(content):
            assert isinstance(found[name], str), name


def test_a_policy_skips_bad_files(decoder: Any, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    write(
        folder, cut_wav=audio()[:9000], empty_wav=b"", text_wav=b"hello " * 99, film_wav=b"RIFF", silent_wav=silence()
    )
    for clips in ("random", "all"):
        data = lk.AudioDataset(folder, clip_s=0.5, clips=clips, cache_dir=None, decoder=decoder)
        policy = lk.BadSamples("skip", max_rate=1)
        loader = lk.Loader(data, 4, num_workers=2, bad_samples=policy)
        found = [length for batch in loader for length in batch["length"].tolist()]
        assert len(found) == len(data) - 4
        assert [Path(bad.error.split(": ")[1]).name for bad in loader.bad_samples] == [
            "cut.wav",
            "empty.wav",
            "film.wav",
            "text.wav",
        ]


def silence() -> bytes:
    return encode_audio("wav", np.zeros((1, RATE), dtype=np.int16))


def test_silence_is_a_sample(decoder: Any, tmp_path: Path) -> None:
    write(tmp_path, a_wav=silence())
    assert not lk.AudioDataset(tmp_path, decoder=decoder)[0]["waveform"].any()


def test_a_wrong_extension_does_not_matter(decoder: Any, tmp_path: Path) -> None:
    write(tmp_path, a_mp3=audio("flac"))
    assert torch.equal(
        lk.AudioDataset(tmp_path, decoder=decoder)[0]["waveform"], torch.from_numpy(samples(2.0)) / 32768
    )


def test_no_threads_are_started(decoder: Any, tmp_path: Path) -> None:
    data = lk.AudioDataset(folder_of(tmp_path), sample_rate=16000, decoder=decoder)
    before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    assert len([sample for sample in data]) == 7  # noqa: C416
    assert len(os.listdir("/proc/self/task")) == before  # noqa: PTH208


ERRORS = {
    "cut.wav: it has 20,000 bytes, its header says": {"cut_wav": audio()[:20000]},
    "text.wav: not audio that can be decoded": {"text_wav": b"hello " * 99},
}


@pytest.mark.parametrize("message", ERRORS)
def test_a_bad_file_is_named(decoder: Any, message: str, tmp_path: Path) -> None:
    write(tmp_path, **ERRORS[message])
    with pytest.raises(ValueError, match=message):
        [*lk.AudioDataset(tmp_path, decoder=decoder)]


def test_a_file_that_is_longer_than_allowed_is_an_error(decoder: Any, tmp_path: Path) -> None:
    write(tmp_path, a_wav=audio())
    with pytest.raises(ValueError, match=r"a.wav: it lasts 2 s, wanted at most max_s=1. Give clip_s="):
        lk.AudioDataset(tmp_path, max_s=1, decoder=decoder)[0]
    assert lk.AudioDataset(tmp_path, max_s=1, clip_s=1.5, decoder=decoder)[0]["length"] == 1.5 * RATE


def test_wrong_settings_are_errors(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for settings, message in (
        ({"clips": "any"}, "clips is 'any'"),
        ({"clip_s": 0.1}, "clip_s 0.1"),
        ({"sample_rate": -1}, "sample_rate -1"),
        ({"clips": "all"}, "clips='all' without clip_s"),
        ({"labels": [1, 2]}, "2 labels for 7 files"),
        ({"labels": "class"}, "labels is 'class'"),
    ):
        with pytest.raises(ValueError, match=message):
            lk.AudioDataset(folder, **settings)
    with pytest.raises(ValueError, match="labels are for files"):
        lk.AudioDataset([{"wav": audio()}], labels=[1])
    with pytest.raises(ValueError, match=r"with the fields \['a', 'b'\], wanted one of encoded bytes or a path"):
        lk.AudioDataset([{"a": 1, "b": 2}])[0]
    with pytest.raises(ValueError, match=r"with the fields \['wav'\], wanted 'sound'"):
        lk.AudioDataset([{"wav": audio()}], field="sound")[0]
    with pytest.raises(FileNotFoundError, match="no folders with files"):
        lk.AudioDataset(folder, labels="folder")
    make_tar(tmp_path / "a.tar", [("a.wav", audio())])
    with pytest.raises(ValueError, match=r"a.tar is a tar shard, wanted files. Give the dataset: lk.TarDataset"):
        lk.AudioDataset(tmp_path / "a.tar")
