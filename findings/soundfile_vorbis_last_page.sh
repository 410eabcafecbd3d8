#!/usr/bin/env bash
# A good guess: after seek(n) in a file of Vorbis, read() gives the samples of the whole file from n on.
# What happens instead: in the last page of the file, clips are those from some samples later on: as many as the last packet has that are not
# heard. The page says where sound ends, and its packets have more; the place of a packet is counted back from there.
# soundfile 0.14.0 (libsndfile 1.2.2), numpy 2.4.6
# Output seen: 60 clips of 1000 samples: 41 are right, 19 are [296] samples too late, from sample 234500 on
# Who meets it: whoever cuts clips of Ogg files by soundfile: the end of a file, here its last 0.7 s, is aside by up to a packet.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet soundfile==0.14.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/sound.ogg" <<'PYTHON'
import sys

import numpy as np
import soundfile

time = np.arange(44100 * 6) / 44100
wave = 0.4 * np.sin(2 * np.pi * (200 * time + 300 * time**2))  # each place sounds differently
soundfile.write(sys.argv[1], wave.astype(np.float32), 44100, format="OGG", subtype="VORBIS")
whole, _ = soundfile.read(sys.argv[1], dtype="float32")

starts = list(range(173000, 263000, 1500))
aside = {}
for start in starts:
    with soundfile.SoundFile(sys.argv[1]) as file:
        file.seek(start)
        clip = file.read(1000, dtype="float32")
    if not np.array_equal(clip, whole[start : start + 1000]):
        [found] = np.flatnonzero((np.lib.stride_tricks.sliding_window_view(whole, 1000) == clip).all(1)).tolist()
        aside[start] = found - start
print(
    f"{len(starts)} clips of 1000 samples: {len(starts) - len(aside)} are right, {len(aside)} are {sorted(set(aside.values()))} samples "
    f"too late, from sample {min(aside, default=None)} on"
)
assert len(aside) == 19 and set(aside.values()) == {296}, "the behaviour changed"
PYTHON
