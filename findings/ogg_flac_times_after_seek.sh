#!/usr/bin/env bash
# A good guess: after a seek in FLAC in Ogg, a packet has the same time as without the seek.
# What happens instead: near the end of the file, all packets of the first page have the times of another page. From the next page on times
# are right. Whoever cuts clips by the time of the first frame after a seek gets sound from up to a second aside.
# av 18.1.0 (FFmpeg 8.0); torchcodec 0.17 with FFmpeg 5.1 trusts the same times.
# Output seen: seek to 4.5 s: the first page is late by 13824 samples, the second one by 0
# Who meets it: readers of clips of Ogg files with FLAC.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet av==18.1.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/sound.oga" <<'PYTHON'
import sys
from fractions import Fraction

import av
import numpy as np

time = np.arange(44100 * 6) / 44100
wave = 0.5 * np.sin(2 * np.pi * np.stack([200 * time + 367.5 * time**2, 11025 * time - 459 * time**2]))
sound = av.AudioFrame.from_ndarray((wave * 32767).astype(np.int16).T.reshape(1, -1).copy(), format="s16", layout="stereo")
sound.sample_rate, sound.pts, sound.time_base = 44100, 0, Fraction(1, 44100)
with av.open(sys.argv[1], "w", format="ogg") as file:
    stream = file.add_stream("flac", rate=44100, layout="stereo")
    file.mux([*stream.encode(sound), *stream.encode()])


def packets(seek_to=None):
    with av.open(sys.argv[1]) as file:
        stream = file.streams.audio[0]
        if seek_to is not None:
            file.seek(round(seek_to / stream.time_base), stream=stream)
        return [(bytes(packet), packet.pts, packet.pos) for packet in file.demux(stream) if packet.pts is not None]


right = {content: pts for content, pts, _ in packets()}
late = {}
for content, pts, page in packets(4.5):
    late.setdefault(page, set()).add(pts - right[content])
first, second = list(late.values())[:2]
print(f"seek to 4.5 s: the first page is late by {sorted(first)} samples, the second one by {sorted(second)}")
assert first == {13824} and second == {0}, "the behaviour changed"
PYTHON
