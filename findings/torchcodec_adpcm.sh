#!/usr/bin/env bash
# A good guess: AudioDecoder gives all samples of a WAV file of IMA ADPCM.
# What happens instead: FFmpeg puts four blocks into a packet, and its decoder makes four frames of it. torchcodec keeps the first one, so
# three quarters of the sound are missing, without an error.
# torchcodec 0.17.0 with FFmpeg 5.1, torch 2.14.1; the file is written by av 18.1.0. It needs FFmpeg's libraries on the machine.
# Output seen: PyAV decodes 88479 samples, torchcodec 22374
# Who meets it: readers of telephone recordings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet av==18.1.0 numpy==2.4.6 torch==2.14.1 torchcodec==0.17.0
"$folder/venv/bin/python" - "$folder/sound.wav" <<'PYTHON'
import sys

import av
import numpy as np
from torchcodec.decoders import AudioDecoder

time = np.arange(44100 * 2) / 44100
wave = np.stack([9000 * np.sin(2 * np.pi * 440 * time)] * 2).astype(np.int16)
sound = av.AudioFrame.from_ndarray(wave, format="s16p", layout="stereo")
sound.sample_rate = 44100
with av.open(sys.argv[1], "w") as file:
    stream = file.add_stream("adpcm_ima_wav", rate=44100, layout="stereo")
    stream.codec_context.format = "s16p"
    file.mux([*stream.encode(sound), *stream.encode()])
with av.open(sys.argv[1]) as file:
    whole = sum(frame.samples for frame in file.decode(audio=0))
found = AudioDecoder(sys.argv[1]).get_all_samples().data.shape[1]
print(f"PyAV decodes {whole} samples, torchcodec {found}")
assert whole >= 88200 and found * 3 < whole, "the behaviour changed"
PYTHON
