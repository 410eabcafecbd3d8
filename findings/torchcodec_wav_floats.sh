#!/usr/bin/env bash
# A good guess: WavDecoder gives the samples of a WAV file of floats, as AudioDecoder does.
# What happens instead: if the header is the longer one (WAVE_FORMAT_EXTENSIBLE), 32 bit floats are taken for integers: another sound, and no
# error. Floats of 64 bits, and floats under the short header, are right.
# torchcodec 0.17.0 with FFmpeg 5.1, torch 2.14.1. It needs FFmpeg's libraries on the machine.
# Output seen: written [0.5, -0.25, 0.125]; AudioDecoder [0.5, -0.25, 0.125]; WavDecoder [0.4921875, -0.51171875, 0.484375]
# Who meets it: readers of floats in surround sound, or from programs that write the longer header.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 torch==2.14.1 torchcodec==0.17.0
"$folder/venv/bin/python" - <<'PYTHON'
import struct

from torchcodec.decoders import AudioDecoder, WavDecoder

written = [0.5, -0.25, 0.125] * 1000
data = struct.pack("<3000f", *written)
name = struct.pack("<H", 3) + b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"  # floats
form = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 8000, 32000, 4, 32, 22, 32, 4) + name
body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
content = b"RIFF" + struct.pack("<I", len(body)) + body
right, wrong = (kind(content).get_all_samples().data[0].tolist() for kind in (AudioDecoder, WavDecoder))
print(f"written {written[:3]}; AudioDecoder {right[:3]}; WavDecoder {wrong[:3]}")
assert right == written and wrong != written, "the behaviour changed"
PYTHON
