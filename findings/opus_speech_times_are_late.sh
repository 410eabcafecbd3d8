#!/usr/bin/env bash
# A good guess: a decoded frame of sound begins where the one before it ends, and its time says so.
# What happens instead: FFmpeg's decoder of Opus keeps 24 samples back where speech is coded with 8,000 Hz, as at 6 kbit/s. The first frame is
# shorter, the times of all later ones are half a millisecond late, and only a count of samples from the first frame on tells their place.
# av 18.1.0 (FFmpeg 8.0). torchcodec 0.17 cuts by these times, so its clips of such files begin 24 samples early.
# Output seen: 6 kbit/s: times are 24 samples late; 64 kbit/s: 0
# Who meets it: whoever cuts clips of Opus by the times of frames.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet av==18.1.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/sound.mp4" <<'PYTHON'
import sys
from fractions import Fraction

import av
import numpy as np

time = np.arange(48000 * 2) / 48000
wave = (0.5 * np.cos(2 * np.pi * (220 * time + 100 * time**2))).astype(np.float32)


def late(rate):
    with av.open(sys.argv[1], "w", format="mp4") as file:
        stream = file.add_stream("libopus", rate=48000, layout="mono")
        stream.codec_context.format, stream.codec_context.bit_rate = "flt", rate
        for start in range(0, len(wave), 960):
            frame = av.AudioFrame.from_ndarray(wave[None, start : start + 960], format="flt", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 48000, start, Fraction(1, 48000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    with av.open(sys.argv[1]) as file:
        samples, found = 0, set()
        for frame in file.decode(audio=0):
            if samples and frame.samples == 960:
                found.add(round(frame.pts * frame.time_base * 48000) - samples)
            samples += frame.samples
    [(only)] = found
    return only


low, high = late(6000), late(64000)
print(f"6 kbit/s: times are {low} samples late; 64 kbit/s: {high}")
assert (low, high) == (24, 0), "the behaviour changed"
PYTHON
