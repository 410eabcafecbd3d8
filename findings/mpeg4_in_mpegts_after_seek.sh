#!/usr/bin/env bash
# A good guess: after a seek, the frames that PyAV decodes are those of a decode from the start; those before a keyframe are left out or
# marked as corrupt.
# What happens instead: a seek in an MPEG transport stream goes to any packet. The decoders of H.264 and MPEG-2 wait for a keyframe. That of
# MPEG-4 does not: it gives differences to a frame that it never had, and marks none as corrupt.
# av 18.1.0 (FFmpeg 8.0).
# Output seen: libx264 and mpeg2video: 0 of 12 seeks give other frames
# Output seen: mpeg4: 12 of 12 seeks give other frames: 66 frames, 0 marked as corrupt
# Who meets it: readers of clips of MPEG-4 in .ts files, who have to leave out packets up to a keyframe themselves.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet av==18.1.0 numpy==2.4.6
"$folder/venv/bin/python" <<'PYTHON'
import io

import av
import numpy as np


def write(codec):
    """Write frames whose eight bars are the bits of their numbers."""
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream = container.add_stream(codec, rate=25, options={"g": "12"})
        stream.width, stream.height, stream.pix_fmt, stream.codec_context.thread_count = 64, 48, "yuv420p", 1
        for number in range(88):
            bits = np.array([number >> bit & 1 for bit in range(8)], dtype=np.uint8)
            bars = np.repeat(30 + 180 * bits, 8)[None, :, None].repeat(48, 0).repeat(3, 2)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(bars)))
        container.mux(stream.encode())
    return file.getvalue()


def decode(content, stamp=None):
    """Return the time, the number and the mark of each frame."""
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        if stamp is not None:
            container.seek(stamp, stream=stream)
        return [(frame.pts, number_of(frame), frame.is_corrupt) for frame in container.decode(stream)]


def number_of(frame):
    bars = frame.to_ndarray(format="gray").mean(0).reshape(8, 8)[:, 2:6].mean(1)
    return sum(int(bar > 120) << bit for bit, bar in enumerate(bars))


found = {}
for codec in ("libx264", "mpeg2video", "mpeg4"):
    content = write(codec)
    whole = decode(content)
    assert [number for _, number, _ in whole] == list(range(88))
    right = {stamp: number for stamp, number, _ in whole}
    wrong = [[frame for frame in decode(content, stamp) if right[frame[0]] != frame[1]] for stamp in list(right)[1:80:7]]
    frames = [frame for each in wrong for frame in each]
    found[codec] = sum(map(bool, wrong)), len(frames), sum(marked for _, _, marked in frames)
    print(f"{codec}: {found[codec][0]} of {len(wrong)} seeks give other frames: {found[codec][1]} frames, {found[codec][2]} marked as corrupt")
assert found["libx264"][0] == found["mpeg2video"][0] == 0 and found["mpeg4"][0] == 12 and not found["mpeg4"][2], "the behaviour changed"
PYTHON
