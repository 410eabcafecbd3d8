#!/usr/bin/env bash
# A good guess: get_all_samples() of an AudioDecoder gives all samples, those of get_samples_played_in_range() from any earlier time on.
# What happens instead: get_all_samples() begins at the time 0, and asks for packets that end after it. The first packet of AAC in MP4 of
# fragments does not say how long it is, so it ends at 0, and its 1,024 samples are left out. Asked from an earlier time on, they come.
# torchcodec 0.17.0 with FFmpeg 5.1, torch 2.14.1; the file is written by av 18.1.0. It needs FFmpeg's libraries on the machine.
# Output seen: all samples: 265216 from 0.0232 s on; from -1 s on: 266240 from 0.0000 s on
# Who meets it: readers of fragmented MP4 (DASH, recordings of browsers), for whom sound and labels are 23 ms apart.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet av==18.1.0 numpy==2.4.6 torch==2.14.1 torchcodec==0.17.0
"$folder/venv/bin/python" - "$folder/sound.mp4" <<'PYTHON'
import sys
from fractions import Fraction

import av
import numpy as np
from torchcodec.decoders import AudioDecoder

time = np.arange(44100 * 6) / 44100
sound = av.AudioFrame.from_ndarray((0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)[None], format="fltp", layout="mono")
sound.sample_rate, sound.pts, sound.time_base = 44100, 0, Fraction(1, 44100)
with av.open(sys.argv[1], "w", options={"movflags": "frag_every_frame+empty_moov"}) as file:
    stream = file.add_stream("aac", rate=44100, layout="mono")
    file.mux([*stream.encode(sound), *stream.encode()])
whole, earlier = AudioDecoder(sys.argv[1]).get_all_samples(), AudioDecoder(sys.argv[1]).get_samples_played_in_range(-1.0)
print(
    f"all samples: {whole.data.shape[1]} from {whole.pts_seconds:.4f} s on; "
    f"from -1 s on: {earlier.data.shape[1]} from {earlier.pts_seconds:.4f} s on"
)
assert earlier.data.shape[1] - whole.data.shape[1] == 1024 and whole.pts_seconds > 0.02, "the behaviour changed"
PYTHON
