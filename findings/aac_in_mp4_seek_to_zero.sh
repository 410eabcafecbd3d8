#!/usr/bin/env bash
# A good guess: after a seek to 0, a file is decoded as if it was just opened.
# What happens instead: AAC in MP4 begins with a packet before the time 0, which prepares the decoder. A seek to 0 leaves it out, and the
# first 1,024 samples are wrong (later ones differ by the decoder's noise). A seek far before 0 gives the samples of a decode without a seek. Opus in WebM loses 20 ms the same way.
# av 18.1.0 (FFmpeg 8.0).
# Output seen: seek to 0: the first 1024 samples differ by up to 0.55, later ones by 0.002; seek to an hour before 0: 0.0
# Who meets it: whoever rewinds a container of PyAV to read it again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet av==18.1.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/sound.m4a" <<'PYTHON'
import sys
from fractions import Fraction

import av
import numpy as np

time = np.arange(44100 * 2) / 44100
wave = (0.5 * np.cos(2 * np.pi * (440 * time + 900 * time**2))).astype(np.float32)[None]
sound = av.AudioFrame.from_ndarray(wave, format="fltp", layout="mono")
sound.sample_rate, sound.pts, sound.time_base = 44100, 0, Fraction(1, 44100)
with av.open(sys.argv[1], "w", format="ipod") as file:
    stream = file.add_stream("aac", rate=44100, layout="mono")
    file.mux([*stream.encode(sound), *stream.encode()])


def decode(seek_to=None):
    with av.open(sys.argv[1]) as file:
        stream = file.streams.audio[0]
        if seek_to is not None:
            file.seek(seek_to * av.time_base)
        return np.concatenate([frame.to_ndarray() for frame in file.decode(stream)], axis=1)


def difference(one, other):
    return float(np.abs(one - other).max())


plain, zero, far = decode(), decode(0), decode(-3600)
first, later = difference(zero[:, :1024], plain[:, :1024]), difference(zero[:, 1024:], plain[:, 1024:])
print(f"seek to 0: the first 1024 samples differ by up to {first:.2f}, later ones by {later:.3f}; seek to an hour before 0: {difference(far, plain)}")
assert first > 0.1 > 0.01 > later and difference(far, plain) == 0, "the behaviour changed"
PYTHON
