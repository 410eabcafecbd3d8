"""Video: the frames that are shown at the wanted times, bit for bit, whatever is sought and skipped."""

import io
import os
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import changed_bytes, cuts, flips, outcomes
from drawing import equal
from media_made import VIDEO, audio, level, levels, video, write
from tars_made import make as make_tar

import loaderkit as lk
from loaderkit import testing

FRAMES, FPS = 50, 25


def numbers(sample: dict[str, Any]) -> list[int]:
    """The numbers of a clip's frames, by their times; their pixels must be those of these frames."""
    found = [round(time * FPS) for time in sample["times"].tolist()]
    assert sample["frames"].dtype == torch.uint8
    assert sample["frames"].is_contiguous()  # else the engines' batches would differ in layout, and a network's results
    assert np.abs(np.subtract(levels(sample["frames"]), list(map(level, found)))).max() < 6
    return found


def need_index(kind: str, decoder: str) -> None:
    if (kind, decoder) == ("ts", "torchcodec"):
        pytest.skip("torchcodec refuses MPEG-TS, see test_decoders.py")


@pytest.mark.parametrize("kind", VIDEO)
def test_clips_one_after_another_show_each_frame_once(decoder: Any, kind: str, tmp_path: Path) -> None:
    """Each is the same, bit for bit, as in one clip of all frames."""
    need_index(kind, decoder)
    folder = write(tmp_path, **{f"a_{kind}": video(kind)})
    (whole,) = lk.VideoDataset(folder, frames=FRAMES, clips="all", cache_dir=None, decoder=decoder)
    assert numbers(whole) == list(range(FRAMES))
    for stride, each in ((1, 8), (3, 5)):
        clips = lk.VideoDataset(folder, frames=each, stride=stride, clips="all", cache_dir=None, decoder=decoder)
        found = [list(zip(numbers(clip), clip["frames"], strict=True))[: clip["length"]] for clip in clips]
        shown = [number for clip in found for number, _ in clip]
        assert shown == list(range(0, FRAMES, stride))
        assert all(torch.equal(frame, whole["frames"][number]) for clip in found for number, frame in clip)


@pytest.mark.parametrize("kind", VIDEO)
def test_frames_far_apart_are_those_of_the_whole(decoder: Any, kind: str, tmp_path: Path) -> None:
    """Between them the reader seeks, or reads on."""
    need_index(kind, decoder)
    folder = write(tmp_path, **{f"a_{kind}": video(kind, frames=120)})
    (whole,) = lk.VideoDataset(folder, frames=120, clips="all", cache_dir=None, decoder=decoder)
    for count in (1, 2, 7, 30):
        sample = lk.VideoDataset(folder, frames=count, clips="even", decoder=decoder)[0]
        found = numbers(sample)
        assert found == [int((number + 0.5) * 120 / count + 1e-9) for number in range(count)]
        assert torch.equal(sample["frames"], whole["frames"][found])


def test_frames_at_another_rate_are_found_by_time(decoder: Any, tmp_path: Path) -> None:
    sample = lk.VideoDataset(
        write(tmp_path, a_mp4=video()), frames=5, fps=10, clips="all", cache_dir=None, decoder=decoder
    )[1]
    assert numbers(sample) == [12, 15, 17, 20, 22]
    sample = lk.VideoDataset(tmp_path, frames=6, fps=50, clips="middle", decoder=decoder)[0]
    assert sorted(numbers(sample)) == numbers(sample)
    assert len(set(numbers(sample))) in (3, 4)


def test_a_changing_frame_rate_keeps_its_pace(decoder: Any, tmp_path: Path) -> None:
    """A frame is shown until the next one begins."""
    import av

    starts = [0, 1, 2, 12, 13, 30, 31, 32, 33, 49]  # in 25ths of a second
    with av.open(str(tmp_path / "a.mkv"), "w") as file:
        stream = file.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.codec_context.time_base = 64, 48, Fraction(1, 25)
        for number, start in enumerate(starts):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), level(number), dtype=np.uint8))
            frame.pts, frame.time_base = start, Fraction(1, 25)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    (sample,) = lk.VideoDataset(tmp_path, frames=20, fps=10, clips="all", cache_dir=None, decoder=decoder)
    found = (sample["times"] * 25).round().int().tolist()
    assert len(set(found)) > 4
    numbers = [starts.index(start) for start in found]
    assert np.abs(np.subtract(levels(sample["frames"]), list(map(level, numbers)))).max() < 6
    assert found == [max(start for start in starts if start <= 2.5 * number) for number in range(20)]


def test_a_short_video_repeats_its_last_frame_and_says_so(decoder: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, one_mp4=video(frames=1), three_webm=video("webm", frames=3))
    for clips in ("random", "middle", "all", "even"):
        one, three = lk.VideoDataset(folder, frames=5, clips=clips, cache_dir=None, decoder=decoder)
        assert (numbers(one), one["length"] if clips != "even" else 1) == ([0] * 5, 1)
        assert numbers(three) == ([0, 1, 2, 2, 2] if clips != "even" else [0, 0, 1, 2, 2])
        assert three["length"] == (3 if clips != "even" else 5)


def labelled(folder: Path, **settings: Any) -> lk.VideoDataset:
    paths = sorted(map(str, folder.glob("*")))
    return lk.VideoDataset(paths, labels=range(len(paths)), **settings)


def ids(batch: dict[str, Any]) -> Any:
    return batch["label"].tolist()


def test_a_random_clip_belongs_to_the_seed(decoder: Any, tmp_path: Path) -> None:
    """Exactly once, resumed, on other ranks, with workers of any kind."""
    kinds = [*VIDEO, "mp4", "mp4"] if decoder == "pyav" else ["mkv", "mp4", "webm", "avi", "mp4", "mp4", "mp4"]
    files = {f"{number}_{kind}": video(kind) for number, kind in enumerate(kinds)}
    data = labelled(write(tmp_path, **files), frames=2, stride=3, decoder=decoder)

    def make(**settings: Any) -> Any:
        return lk.Loader(data, **{"batch_size": 2, "shuffle": True, "seed": 3} | settings)

    testing.assert_exactly_once(make, worlds=(1, 3), samples=7, ids=ids)
    testing.assert_resumable(make, epochs=1, consumers=("loop",), ids=ids)
    testing.assert_epochs_differ(make)
    whole = list(make())
    assert len(whole) == 4
    for engine in ("threads", "ring", "torch"):
        assert equal(list(make(engine=engine, num_workers=2)), whole)


def test_a_random_clip_begins_anywhere_in_its_file(decoder: Any, tmp_path: Path) -> None:
    """Each epoch at another frame; another seed gives others."""
    clips = lk.VideoDataset(write(tmp_path, a_mp4=video(frames=25)), frames=5, decoder=decoder)

    def starts(seed: int) -> list[int]:
        loader, found = lk.Loader(clips, seed=seed, collate_fn=list), []
        for _ in range(40):
            [[sample]] = list(loader)
            first = numbers(sample)[0]
            assert numbers(sample) == list(range(first, first + 5))
            found.append(first)
        return found

    found = starts(0)
    assert len(set(found)) > 12
    assert min(found) < 5
    assert max(found) > 15
    assert found == starts(0) != starts(1)


@pytest.mark.slow
def test_workers_that_start_in_any_way_read_the_same_clips(decoder: Any, tmp_path: Path) -> None:
    data = labelled(write(tmp_path, **{f"{number}_mp4": video() for number in range(5)}), frames=2, decoder=decoder)
    testing.assert_workers_dont_matter(
        lambda **settings: lk.Loader(data, 2, shuffle=True, **settings),
        start_methods=("fork", "forkserver", "spawn"),
        ids=ids,
    )


def test_tar_shards_give_the_samples_of_their_files(decoder: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "files", a_mp4=video(), b_mp4=video(frames=30))
    files = [(path.name, path.read_bytes()) for path in sorted(folder.iterdir())]
    make_tar(
        tmp_path / "a.tar",
        [files[0], ("a.wav", audio()), ("a.cls", b"3"), files[1], ("b.wav", audio()), ("b.cls", b"4")],
    )
    settings: dict[str, Any] = {"frames": 4, "clips": "all", "cache_dir": None}
    from_tar = lk.VideoDataset(lk.TarDataset(tmp_path / "a.tar"), **settings, decoder=decoder)
    from_files = lk.VideoDataset(folder, **settings, decoder=decoder)
    assert len(from_tar) == len(from_files) == 13 + 8
    batches = [list(lk.Loader(data, 6)) for data in (from_tar, from_files)]
    assert equal([batch["frames"] for batch in batches[0]], [batch["frames"] for batch in batches[1]])
    assert [label for batch in batches[0] for label in batch["cls"].tolist()] == [3] * 13 + [4] * 8
    both = lk.AudioDataset(
        lk.VideoDataset(lk.TarDataset(tmp_path / "a.tar"), frames=1, decoder=decoder), decoder=decoder
    )[1]
    assert {"frames", "waveform", "cls"} <= set(both)


MATRICES = [(0, 1, -1, 0), (0, -1, 1, 0), (-1, 0, 0, -1), (-1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0), (0, -1, -1, 0)]


@pytest.mark.parametrize("matrix", MATRICES)
def test_frames_are_upright(decoder: Any, matrix: tuple[int, ...], tmp_path: Path) -> None:
    """A phone writes how its picture is turned into the header of the track, and its front camera that it is mirrored."""
    content = bytearray(corners())
    at = content.index(b"tkhd") + 44
    for place, value in zip((0, 4, 12, 16), matrix, strict=True):
        content[at + place : at + place + 4] = (value << 16).to_bytes(4, "big", signed=True)
    write(tmp_path, plain_mp4=corners(), turned_mp4=bytes(content))
    plain, other = lk.VideoDataset(tmp_path, frames=2, clips="middle", decoder=decoder)
    rows, columns = np.indices(plain["frames"].shape[2:])
    right, down = matrix[0] * columns + matrix[2] * rows, matrix[1] * columns + matrix[3] * rows
    expected = torch.zeros_like(other["frames"])
    expected[:, :, down - down.min(), right - right.min()] = plain["frames"][:, :, rows, columns]
    assert torch.equal(other["frames"], expected)
    assert len({int(plain["frames"][0, 0, row, column]) // 20 for row in (5, -5) for column in (5, -5)}) == 4


def corners() -> bytes:
    """A video whose four corners differ."""
    av, file = pytest.importorskip("av"), io.BytesIO()
    pixels = np.zeros((48, 64, 3), dtype=np.uint8)
    pixels[:24, 32:], pixels[24:, :32], pixels[24:, 32:] = 80, 160, 240
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "4"})
        stream.width, stream.height, stream.codec_context.thread_count = 64, 48, 1
        for _ in range(10):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return file.getvalue()


def test_a_cover_is_no_video(decoder: Any, tmp_path: Path) -> None:
    import av

    file, song = io.BytesIO(), av.open(io.BytesIO(audio("mp3")))
    with av.open(file, "w", format="mp3") as container:
        sound = container.add_stream("libmp3lame", rate=8000, layout="mono")
        cover = container.add_stream("png", rate=1)
        cover.width, cover.height, cover.pix_fmt = 8, 8, "rgb24"
        cover.disposition = av.stream.Disposition.attached_pic
        container.mux(cover.encode(av.VideoFrame.from_ndarray(np.zeros((8, 8, 3), np.uint8))))
        for frame in song.decode(audio=0):
            frame.pts = None
            container.mux(sound.encode(frame))
        container.mux(sound.encode())
    with pytest.raises(ValueError, match="it has no video, only audio and video"):
        lk.VideoDataset([{"mp4": file.getvalue()}], frames=1, decoder=decoder)[0]
    assert lk.AudioDataset([{"mp3": file.getvalue()}], decoder=decoder)[0]["waveform"].shape[0] == 1


def read(content: bytes, decoder: Any) -> Any:
    clips = lk.VideoDataset(
        [{"film": content}], field="film", frames=4, clips="even", max_pixels=1 << 20, decoder=decoder
    )
    sample = clips[0]
    assert sample["frames"].shape[:2] == (4, 3)
    return [*sample["times"].tolist(), int(sample["frames"].sum())]


@pytest.mark.each_value
@pytest.mark.parametrize("kind", [*VIDEO, "mp4 with its index first"])
def test_damaged_video_is_decoded_or_an_error(decoder: Any, kind: str, request: pytest.FixtureRequest) -> None:
    content = video(kind[:4].strip(), frames=30, front=" " in kind)
    cases = [*cuts(content, 30), *changed_bytes(content, range(4, 64, 9))]
    cases += flips(content, int(request.config.getoption("--flips")) // 10)
    found = outcomes(partial(read, decoder=decoder), cases, (ValueError,))
    assert len(found) == len(cases)
    assert sum(isinstance(result, str) for result in found.values()) > 9
    for name, case in cases:
        if len(case) < 0.6 * len(content) and kind != "ts":  # it does not say how long it is
            assert isinstance(found[name], str), name


def test_a_policy_skips_bad_files(decoder: Any, tmp_path: Path) -> None:
    write(
        tmp_path, a_mp4=video(), b_mp4=video()[:900], c_mp4=b"", d_mp4=audio(), e_mp4=video(frames=1), f_mp4=b"x" * 999
    )
    data = lk.VideoDataset(tmp_path, frames=2, clips="all", cache_dir=None, decoder=decoder)
    loader = lk.Loader(data, 4, num_workers=2, bad_samples=lk.BadSamples("skip", max_rate=1))
    assert sum(len(batch["length"]) for batch in loader) == 25 + 1
    assert [Path(bad.error.split(": ")[1]).name for bad in loader.bad_samples] == ["b.mp4", "c.mp4", "d.mp4", "f.mp4"]
    assert "it has no video, only audio" in loader.bad_samples[2].error


def test_no_threads_are_started(decoder: Any, tmp_path: Path) -> None:
    data = lk.VideoDataset(write(tmp_path, a_mp4=video(), b_webm=video("webm")), frames=9, decoder=decoder)
    before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    assert len([sample for sample in data]) == 2  # noqa: C416
    assert len(os.listdir("/proc/self/task")) == before  # noqa: PTH208


def test_a_frame_that_is_too_large_is_an_error(decoder: Any, tmp_path: Path) -> None:
    write(tmp_path, a_mp4=video())
    data = lk.VideoDataset(tmp_path, frames=1, max_pixels=64 * 48 - 1, decoder=decoder)
    with pytest.raises(ValueError, match=r"a.mp4: its frames have 64 x 48 pixels, wanted at most max_pixels=3,071"):
        data[0]
    assert lk.VideoDataset(tmp_path, frames=1, max_pixels=64 * 48, decoder=decoder)[0]["length"] == 1


def test_wrong_settings_are_errors(tmp_path: Path) -> None:
    write(tmp_path, a_mp4=video())
    for settings, message in (
        ({"frames": 0}, "frames 0"),
        ({"frames": 1, "stride": 0}, "stride 0"),
        ({"frames": 1, "fps": 0}, "fps 0"),
        ({"frames": 1, "clips": "some"}, "clips is 'some'"),
        ({"frames": 1, "fps": 5, "stride": 2}, "fps is 5 and stride 2, wanted one of them"),
        ({"frames": 1, "max_pixels": 0}, "max_pixels is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            lk.VideoDataset(tmp_path, **settings)
