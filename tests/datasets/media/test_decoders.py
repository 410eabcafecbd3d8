"""Two decoders: the same clips, times and errors, and a run keeps the one that it began with."""

import errno
import io
import os
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import scripts
import torch
from media_made import LOSSLESS, LOSSY, RATE, VIDEO, audio, need_decoder, samples, video, write

import loaderkit as lk

SECONDS = 1.7


def by_both(make: Any) -> Any:
    """What a function of a decoder gives for each of them."""
    need_decoder("torchcodec")
    return [make(name) for name in ("pyav", "torchcodec")]


@pytest.mark.each_value
@pytest.mark.parametrize("kind", LOSSLESS | LOSSY)
@pytest.mark.parametrize("clips", ["whole", "random", "middle", "all"])
def test_sound_is_the_same_by_both(kind: str, clips: str, tmp_path: Path) -> None:
    rate = 48000 if kind in ("ogg", "webm") else RATE
    for number in range(3):
        write(tmp_path, **{f"{number}_{kind}": audio(kind, SECONDS + number / 7, number, 2, rate)})
    settings: dict[str, Any] = {} if clips == "whole" else {"clip_s": 0.4, "clips": clips}

    def batches(decoder: str) -> list[Any]:
        data = lk.AudioDataset(tmp_path, cache_dir=None, decoder=decoder, **settings)  # type: ignore[arg-type]
        loader = lk.Loader(data, shuffle=True, seed=1)
        return [batch for _ in range(2 if clips == "random" else 1) for batch in loader]

    ours, others = by_both(batches)
    assert len(ours) == len(others) >= 3
    for one, other in zip(ours, others, strict=True):
        assert one["sample_rate"].equal(other["sample_rate"])
        assert clips == "whole" or one["length"].equal(other["length"])
        assert one["waveform"].shape == other["waveform"].shape
        assert one["waveform"].abs().max() > 0.1
        if kind in LOSSLESS:
            assert torch.equal(one["waveform"], other["waveform"])
        else:  # WebM rounds times to a millisecond
            moved = [one["waveform"][:, :, start : start + 9000] for start in range(49 if kind == "webm" else 1)]
            middle = other["waveform"][:, :, 24:9024] if kind == "webm" else other["waveform"][:, :, :9000]
            assert min((middle - each[:, :, : middle.shape[2]]).abs().mean() for each in moved) < 1e-3


@pytest.mark.parametrize("kind", [kind for kind in VIDEO if kind != "ts"])
@pytest.mark.parametrize("clips", ["random", "middle", "even", "all"])
@pytest.mark.parametrize("pace", [{}, {"stride": 3}, {"fps": 10}, {"fps": 60}])
def test_frames_are_the_same_by_both(kind: str, clips: str, pace: dict[str, Any], tmp_path: Path) -> None:
    for number, frames in enumerate((31, 50, 3)):
        write(tmp_path, **{f"{number}_{kind}": video(kind, frames)})

    def batches(decoder: str) -> list[Any]:
        data = lk.VideoDataset(tmp_path, frames=4, clips=clips, cache_dir=None, decoder=decoder, **pace)  # type: ignore[arg-type]
        loader = lk.Loader(data, shuffle=True, seed=1)
        return [batch for _ in range(3 if clips == "random" else 1) for batch in loader]

    ours, others = by_both(batches)
    assert len(ours) == len(others) >= 3
    for one, other in zip(ours, others, strict=True):
        torch.testing.assert_close(one["times"], other["times"], rtol=0, atol=1e-6)
        assert one["length"].equal(other["length"])
        assert one["frames"].shape == other["frames"].shape
        difference = (one["frames"].int() - other["frames"].int()).abs()
        assert difference.float().mean() < 4
        assert difference.max() < 16


@pytest.mark.parametrize("size", [(64, 48), (70, 46), (33, 17)])
def test_frames_of_any_size_are_close(size: tuple[int, int], tmp_path: Path) -> None:
    """For some widths torchcodec converts colours by another function of FFmpeg."""
    even = (size[0] // 2 * 2, size[1] // 2 * 2)
    write(tmp_path, a_mp4=video(size=even))
    one, other = by_both(lambda decoder: lk.VideoDataset(tmp_path, frames=4, clips="even", decoder=decoder)[0])
    assert one["frames"].shape == (4, 3, even[1], even[0])
    assert (one["frames"].int() - other["frames"].int()).abs().float().mean() < 4


def film(rate: Fraction, starts: list[int], movflags: str = "", kind: str = "mp4") -> bytes:
    """A video whose frames begin at these ticks; a second has `rate` of them."""
    av, file = pytest.importorskip("av"), io.BytesIO()
    with av.open(file, "w", format=kind, options={"movflags": movflags} if movflags else {}) as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 64, 48, "yuv420p", 12
        stream.codec_context.time_base, stream.codec_context.thread_count = 1 / rate, 1
        for number, start in enumerate(starts):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 + 7 * number % 200, dtype=np.uint8))
            frame.pts, frame.time_base = start, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


CHANGING = np.cumsum(np.random.default_rng(0).choice([1, 2, 3, 7], 80)).tolist()
FILMS: dict[str, Any] = {
    "24000/1001": (Fraction(24000, 1001), [*range(90)]),
    "30000/1001": (Fraction(30000, 1001), [*range(90)]),
    "7": (Fraction(7), [*range(30)]),
    "one": (Fraction(25), [0]),
    "changing": (Fraction(60), CHANGING),
    "late": (Fraction(25), [*range(25, 70)]),
    "fragments": (Fraction(25), [*range(60)], "frag_keyframe+empty_moov"),
    "flv": (Fraction(25), [*range(60)], "", "flv"),
}


@pytest.mark.parametrize("name", FILMS)
def test_any_frame_rate_is_the_same_by_both(name: str) -> None:
    content = film(*FILMS[name])
    for clips in ("middle", "even", "all"):
        for pace in ({}, {"stride": 3}, {"fps": 11}):

            def read(decoder: Any, settings: dict[str, Any] = {"clips": clips, **pace}) -> Any:  # noqa: B006
                data = lk.VideoDataset([{"mp4": content}], frames=4, cache_dir=None, decoder=decoder, **settings)
                return [(sample["length"], sample["times"]) for sample in data]

            ours, others = by_both(read)
            assert [length for length, _ in ours] == [length for length, _ in others] != []
            for (_, one), (_, other) in zip(ours, others, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_videos_without_an_index_are_for_pyav(tmp_path: Path) -> None:
    """After a seek in MPEG-TS, torchcodec gives the frames of another place, and says so only by their times."""
    one, error = by_both(lambda decoder: outcome(tmp_path, decoder))
    assert one["length"] == 4
    assert (
        "a.ts: its format mpegts has no index, in which torchcodec does not find frames. Give decoder='pyav'" in error
    )


def outcome(folder: Path, decoder: Any) -> Any:
    write(folder, a_ts=video("ts"))
    try:
        return lk.VideoDataset(folder, frames=4, decoder=decoder)[0]
    except ValueError as error:
        return str(error)


def tracks(*sounds: Any) -> bytes:
    """A Matroska file of several tracks: waveforms (C, T) int16, or None for a video of 1 s."""
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        streams = []
        for sound in sounds:
            if sound is None:
                streams.append(container.add_stream("mpeg4", rate=25))
                streams[-1].width, streams[-1].height = 32, 32
            else:
                streams.append(
                    container.add_stream("pcm_s16le", rate=RATE, layout={1: "mono", 2: "stereo"}[len(sound)])
                )
        for sound, stream in zip(sounds, streams, strict=True):
            if sound is None:
                for _ in range(25):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((32, 32, 3), 99, np.uint8))))
            else:
                frame = av.AudioFrame.from_ndarray(sound.T.reshape(1, -1).copy(), format="s16", layout=stream.layout)
                frame.sample_rate = RATE
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    return file.getvalue()


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (None, 0, 1), (None, 1, 0), (0, None, 1)])
def test_the_first_stream_is_read(order: tuple[int | None, ...], decoder: Any) -> None:
    """Also if FFmpeg thinks that another one is better."""
    sounds = [samples(1.0, seed=1), samples(1.0, seed=2, channels=2)]
    content = tracks(*(None if each is None else sounds[each] for each in order))
    first = sounds[next(each for each in order if each is not None)]
    wave = lk.AudioDataset([{"mka": content}], decoder=decoder)[0]["waveform"]
    assert np.array_equal(wave.numpy(), first / np.float32(32768))
    if None in order:
        assert lk.VideoDataset([{"mkv": content}], frames=3, decoder=decoder)[0]["length"] == 3


PLAYLISTS = {
    "concat": b"ffconcat version 1.0\nfile sound.wav\n",
    "hls": b"#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:2.0,\nsound.aac\n#EXT-X-ENDLIST\n",
}


@pytest.mark.parametrize("name", PLAYLISTS)
@pytest.mark.parametrize("as_file", [False, True])
def test_a_playlist_opens_no_other_file(
    name: str, as_file: bool, decoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path, sound_wav=audio("wav"), sound_aac=audio("aac"), list_wav=PLAYLISTS[name]))
    content = "list.wav" if as_file else PLAYLISTS[name]
    with pytest.raises(ValueError, match="not audio that can be decoded"):
        lk.AudioDataset([{"wav": content}], decoder=decoder)[0]
    with pytest.raises(ValueError, match=r"not video that can be decoded|it has no video"):
        lk.VideoDataset([{"mp4": content}], frames=1, decoder=decoder)[0]


class Failing(lk.Storage):
    """A storage whose connection breaks after some reads."""

    __slots__ = ()

    def open(self, url: str, *_: Any, **__: Any) -> BinaryIO:
        left = int(url.rpartition("-")[2])

        class Broken(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                nonlocal left
                left -= 1
                if left < 0:
                    raise ConnectionResetError(errno.ECONNRESET, "the connection broke")
                return super().read(min(size or 0, 4096))

        return Broken(audio("flac", 5.0))


def test_an_error_of_reading_is_no_fault_of_the_file(decoder: Any) -> None:
    """The loader tries again, where a damaged file would be skipped."""
    found = set()
    for reads in range(0, 200, 5):
        sounds = lk.AudioDataset(
            [{"flac": f"failing://sound-{reads}"}], storage=Failing(), clip_s=1.0, clips="middle", decoder=decoder
        )
        try:
            found.add(sounds[0]["length"])
        except ConnectionResetError as error:
            found.add(str(error))
    assert found == {RATE, "[Errno 104] the connection broke"}


def noise(frames: int = 30) -> bytes:
    """A video of some 100 KB, which is read in several parts."""
    av, rng, file = pytest.importorskip("av"), np.random.default_rng(0), io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.codec_context.thread_count = 128, 96, "yuv420p", 1
        for _ in range(frames):
            pixels = rng.integers(0, 255, (96, 128, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return file.getvalue()


class Watching(lk.Storage):
    """A storage that counts the threads of the process at each read."""

    __slots__ = ()

    def open(self, url: str, *_: Any, **__: Any) -> BinaryIO:
        class Watched(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                SEEN.append(threads())
                return super().read(size)

        return Watched(noise())


SEEN: list[int] = []


def threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def test_a_decoder_has_no_threads(decoder: Any) -> None:
    SEEN.clear()
    films = lk.VideoDataset([{"mp4": "watching://a"}], storage=Watching(), frames=30, clips="even", decoder=decoder)
    before = threads()
    assert films[0]["frames"].shape == (30, 3, 96, 128)
    assert len(SEEN) > 5
    assert set(SEEN) == {before}


def test_a_run_keeps_its_decoder(decoder: Any, tmp_path: Path) -> None:
    need_decoder("torchcodec")
    other = {"pyav": "torchcodec", "torchcodec": "pyav"}[decoder]
    files = write(tmp_path, a_wav=audio(), b_wav=audio())
    for settings in ({}, {"clip_s": 0.5}, {"clip_s": 0.5, "clips": "all"}):
        loader = lk.Loader(lk.AudioDataset(files, decoder=decoder, **settings), shuffle=True)
        state = loader.state_dict()
        lk.Loader(pickle.loads(pickle.dumps(loader.dataset)), shuffle=True).load_state_dict(state)
        changed: Any = lk.AudioDataset(files, decoder=other, **settings)  # type: ignore[arg-type]
        with pytest.raises(lk.StateError, match="torchcodec"):
            lk.Loader(changed, shuffle=True).load_state_dict(state)
    assert lk.AudioDataset(files).fingerprint().startswith("media-1 2 files, ")


MISSING = """
import sys, types
import loaderkit as lk
for fake in (None, types.SimpleNamespace(__version__="0.9.1"), types.SimpleNamespace(__version__="1.0.0", ffmpeg_major_version=None)):
    sys.modules["torchcodec"] = fake
    try:
        lk.AudioDataset([{"wav": b""}], decoder="torchcodec")
    except ImportError as error:
        print(error)
lk.AudioDataset([{"wav": b""}])
"""


def test_a_missing_decoder_is_an_error_that_says_how_to_get_it(tmp_path: Path) -> None:
    pytest.importorskip("av")
    errors = scripts.run_code(tmp_path, MISSING).splitlines()
    assert len(errors) == 3, errors
    assert "needs torchcodec" in errors[0]
    assert "found torchcodec 0.9.1, wanted 0.17 or later" in errors[1]
    assert "torchcodec 1.0.0 finds no libraries of FFmpeg" in errors[2]
    assert all("pip install '.[torchcodec]'" in error for error in errors)


def test_wrong_decoders_are_errors(tmp_path: Path) -> None:
    pytest.importorskip("av")
    write(tmp_path, a_wav=audio(), a_mp4=video())
    with pytest.raises(ValueError, match=r"decoder is 'ffmpeg', wanted one of \('pyav', 'torchcodec'\)"):
        lk.AudioDataset(tmp_path, decoder="ffmpeg")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="device is 'cuda' and decoder 'pyav', wanted decoder='torchcodec'"):
        lk.VideoDataset(tmp_path, frames=1, device="cuda")


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_worker_processes_do_not_decode_on_a_gpu(engine: Any, tmp_path: Path) -> None:
    need_decoder("torchcodec")
    films = lk.VideoDataset(write(tmp_path, a_mp4=video()), frames=1, decoder="torchcodec", device="cuda")
    assert films.fingerprint().endswith(" by torchcodec on cuda")
    with pytest.raises(RuntimeError, match=r"in a worker process.* Give the Loader num_workers=0 or engine='threads'"):
        next(iter(lk.Loader(films, num_workers=1, engine=engine)))
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match=r"CUDA|cuda"):
            films[0]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["mp4", "mkv", "webm"])
@pytest.mark.parametrize(("engine", "workers"), [("auto", 0), ("threads", 2)])
def test_frames_by_the_gpus_decoder_are_close(kind: str, engine: Any, workers: int, tmp_path: Path) -> None:
    need_decoder("torchcodec")
    for number, frames in enumerate((31, 50, 12)):
        write(tmp_path, **{f"{number}_{kind}": video(kind, frames, size=(320, 240))})

    def batches(device: str) -> list[Any]:
        data = lk.VideoDataset(tmp_path, frames=4, stride=2, decoder="torchcodec", device=device)
        loader = lk.Loader(data, 3, shuffle=True, num_workers=workers, engine=engine)
        return [*lk.DeviceLoader(loader, "cuda"), *lk.DeviceLoader(loader, "cuda")]

    ours, others = batches("cuda"), batches("cpu")
    assert len(ours) == len(others) == 2
    for one, other in zip(ours, others, strict=True):
        assert one["frames"].is_cuda
        assert one["frames"].is_contiguous()
        torch.testing.assert_close(one["times"], other["times"], rtol=0, atol=1e-6)
        assert (one["frames"].int() - other["frames"].int()).abs().float().mean() < 3
    repeated = batches("cuda")
    assert all(one["frames"].equal(again["frames"]) for one, again in zip(ours, repeated, strict=True))


@pytest.mark.parametrize("kind", ["mp3", "aac"])
def test_clips_of_a_file_read_it_once_to_count_its_packets(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it changes: then clips are of the new file."""
    need_decoder("torchcodec")
    import av

    opened: list[int] = []
    real = av.open

    def counted(*given: Any, **settings: Any) -> Any:
        opened.append(1)
        return real(*given, **settings)

    monkeypatch.setattr(av, "open", counted)
    path = tmp_path / f"a.{kind}"
    lengths: list[int] = []
    for seconds in (1.0, 3.0):
        path.write_bytes(audio(kind, seconds, channels=2))
        sounds = lk.AudioDataset([str(path)], cache_dir=None, decoder="torchcodec")
        opened.clear()
        lengths += [sounds[0]["waveform"].shape[1] for _ in range(3)]
        assert len(opened) == 1
    assert len(set(lengths[:3])) == len(set(lengths[3:])) == 1
    assert lengths[3] - lengths[0] == pytest.approx(2 * RATE, abs=2000)
    content = lk.AudioDataset(
        [{kind: path.read_bytes()}], decoder="torchcodec"
    )  # nothing tells whether these are the same
    assert content[0]["waveform"].shape[1] == lengths[3]
