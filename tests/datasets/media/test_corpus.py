"""Each format: any clip is that part of a decode of the whole file without a seek, to the sample and to the frame."""

from typing import Any

import numpy as np
import pytest
import torch
from media_corpus import FILMS, SOUNDS, film, number_of, sound, whole_film, whole_sound

import loaderkit as lk

REFUSED = "decoder='pyav'"


def clips_of(name: str, decoder: Any, clip_s: float | None) -> lk.AudioDataset:
    clips: Any = "random" if clip_s is None else "all"
    return lk.AudioDataset([{"wav": sound(name)}], clip_s=clip_s, clips=clips, cache_dir=None, decoder=decoder)


def check_sound(name: str, decoder: Any, lengths_s: list[float]) -> None:
    made, plain = SOUNDS[name], whole_sound(name)
    if (decoder, made.torchcodec) == ("torchcodec", "refused"):
        with pytest.raises(ValueError, match=REFUSED):
            clips_of(name, decoder, None)[0]
        return
    whole = clips_of(name, decoder, None)[0]["waveform"].numpy()
    assert clips_of(name, decoder, None).lengths().tolist() == [whole.shape[1]]
    # What the encoder added at the end may be left out, if the header says so.
    assert 0 <= plain.shape[1] - whole.shape[1] < 2304
    rounds = decoder == "torchcodec" and made.torchcodec == "ms"
    reference = whole if decoder == "torchcodec" else plain  # FFmpeg's versions decode Vorbis differently
    if not rounds and made.codec != "vorbis":
        assert np.abs(whole - plain[:, : whole.shape[1]]).max() <= 2e-6
    shifts = range(-made.rate // 1000 - 1, made.rate // 1000 + 2) if rounds else range(1)
    found = 0
    for clip_s in lengths_s:
        for number, clip in enumerate(clips_of(name, decoder, clip_s)):
            start, length = number * round(clip_s * made.rate), clip["length"]
            wave = clip["waveform"].numpy()[:, :length]
            expected = min(round(clip_s * made.rate), whole.shape[1] - start)
            assert length == expected
            assert not clip["waveform"][:, length:].any()
            inside = wave[:, len(shifts) : -len(shifts)] if rounds else wave
            first = start + len(shifts) if rounds else start
            around = (reference[:, first + shift :][:, : inside.shape[1]] for shift in shifts)
            # The end of a file, and what codecs make of it, is not that of the whole.
            assert any(each.shape == inside.shape and np.abs(each - inside).max() <= made.error for each in around), (
                start
            )
            found += 1
    assert found > 0.9 * sum(made.seconds / clip_s for clip_s in lengths_s)


@pytest.mark.each_value
@pytest.mark.parametrize("name", SOUNDS)
def test_a_clip_of_sound_is_that_part_of_the_whole(name: str, decoder: Any) -> None:
    check_sound(name, decoder, [0.31])


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUNDS)
def test_clips_of_sound_at_120_places_are_those_parts_of_the_whole(name: str, decoder: Any) -> None:
    check_sound(name, decoder, [0.25, 0.27, 0.29, 0.33, 0.37, 0.41])


def shown(name: str, decoder: Any, **settings: Any) -> list[Any]:
    """The clips of a video, or the errors that name the other decoder."""
    films = lk.VideoDataset([{"mp4": film(name)}], cache_dir=None, decoder=decoder, **settings)
    found: list[Any] = []
    for number in range(len(films)):
        try:
            found.append(films[number])
        except ValueError as error:
            if (decoder, FILMS[name].torchcodec) != ("torchcodec", "refused") or REFUSED not in str(error):
                raise
            found.append(None)
    return found


@pytest.mark.each_value
@pytest.mark.parametrize("name", FILMS)
def test_a_frame_is_the_one_that_is_shown_at_its_time(name: str, decoder: Any) -> None:
    """In clips of a few frames, and in one of all."""
    whole, made = whole_film(name), FILMS[name]
    begins = [time for time, _ in whole]
    assert len(whole) == made.frames
    fps = 60.0 if made.starts is not None else None
    count = made.frames if made.starts is None else made.starts[-1] + 1
    for frames in (5, count):
        clips = shown(name, decoder, frames=frames, fps=fps, clips="all")
        assert len(clips) >= -(-count // frames)
        seen = set()
        for number, clip in enumerate(clips):
            if clip is None:
                continue
            for row in range(clip["length"]):
                at = number * frames + row
                time = clip["times"][row].item()
                wanted = int(np.abs(np.subtract(begins, time)).argmin())
                assert abs(time - begins[wanted]) < 2e-3
                # Matroska rounds times to a millisecond, so a frame that begins just now may be shown or not.
                now = (at + 0.5 if fps is None else at) / (fps or float(made.rate))
                assert time < now + 2e-3
                assert wanted == made.frames - 1 or begins[wanted + 1] > now - 2e-3
                if decoder == "pyav":
                    assert np.array_equal(clip["frames"][row].numpy(), whole[wanted][1])
                assert number_of(clip["frames"][row]) == number_of(torch.from_numpy(whole[wanted][1])) == wanted
                seen.add(wanted)
        assert (
            len(seen) == made.frames
            or (made.rounds and len(seen) > made.frames - 5)
            or (decoder == "torchcodec" and None in clips)
        )
