"""Waveforms (C, T) float32: fill them up to the length in their file's header, and resample them."""

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.media.content import TOLERANCE_S
from loaderkit.datasets.media.pyav_container import is_pyav_19, pyav

Waveform = npt.NDArray[np.float32]


def filled(wave: Waveform, start: int, count: int, sample_rate: int) -> Waveform:
    """Return a waveform, decoded from sample `start` on, as (C, count). Up to 0.25 s missing at its end is silence.

    Raises:
        ValueError: If more is missing.
    """
    check_reaches(start + wave.shape[1], start + count, sample_rate)
    return sized(wave, count)


def sized(wave: Waveform, count: int) -> Waveform:
    """Return a waveform (C, T) as (C, count) and contiguous: cut, or followed by silence.

    It is copied only if needed.
    """
    if wave.shape[1] >= count:
        return np.ascontiguousarray(wave[:, :count])
    whole = np.zeros((len(wave), count), dtype=np.float32)
    whole[:, : wave.shape[1]] = wave
    return whole


def check_reaches(end: int, wanted: int, sample_rate: int) -> None:
    """Check that a file, which ends at sample `end`, reaches sample `wanted` to within 0.25 s.

    Raises:
        ValueError: If it ends earlier, or has no samples.
    """
    if not end or end < wanted - TOLERANCE_S * sample_rate:
        raise ValueError(
            f"it ends at {end / sample_rate:.3f} s, wanted {wanted / sample_rate:.3f} s: it is cut or damaged"
        )


def resample(wave: Waveform, rate: int, new_rate: int, count: int) -> Waveform:
    """Return a waveform (C, T) resampled from `rate` to `new_rate` (Hz), as (C, count), by PyAV's FFmpeg.

    If the rates are equal, it is returned unchanged.
    """
    if rate == new_rate:
        return wave
    av = pyav()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave), format="fltp", layout=_layout(len(wave)))
    frame.sample_rate = rate
    threads = {"threads": 1} if is_pyav_19() else {}
    convert = av.AudioResampler(format="fltp", layout=frame.layout, rate=new_rate, **threads)
    pieces = [piece.to_ndarray() for given in (frame, None) for piece in convert.resample(given)]
    found = np.concatenate([*pieces, np.zeros((len(wave), count), dtype=np.float32)], axis=1)
    return np.ascontiguousarray(found[:, :count])


def _layout(channels: int) -> str:
    return {1: "mono", 2: "stereo"}.get(channels, f"{channels}C")
