"""WAV files as programs write them: torchcodec reads the plain ones without FFmpeg, and all have the samples that FFmpeg finds."""

import struct
from typing import Any

import numpy as np
import pytest
from media_made import need_decoder

import loaderkit as lk

RATE, FRAMES = 8000, 4001
PCM, FLOAT, ALAW, MULAW = 1, 3, 6, 7
REST = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"  # of the name of a format


def chunk(name: bytes, content: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(content) if size is None else size) + content + b"\0" * (len(content) % 2)


def wav(
    tag: int = PCM,
    bits: int = 16,
    channels: int = 1,
    *,
    used: int | None = None,
    before: bytes = b"",
    after: bytes = b"",
    more: bytes = b"",
    size: int | None = None,
    riff: int | None = None,
    begin: bytes = b"",
) -> bytes:
    """A file of noise. `used`: bits of a sample that count, in the longer header. `size`, `riff`: sizes that are not true."""
    rng, block = np.random.default_rng(0), channels * bits // 8
    data = rng.bytes(FRAMES * block)
    if tag == FLOAT:
        data = rng.uniform(-1, 1, FRAMES * channels).astype(f"<f{bits // 8}").tobytes()
    data = begin + data[len(begin) :] + more
    form = struct.pack("<HHIIHH", tag if used is None else 0xFFFE, channels, RATE, RATE * block, block, bits)
    if used is not None:
        form += struct.pack("<HHIH", 22, used, (1 << channels) - 1, tag) + REST
    body = b"WAVE" + before + chunk(b"fmt ", form) + chunk(b"data", data, size) + after
    return b"RIFF" + struct.pack("<I", len(body) if riff is None else riff) + body


FORMATS = [(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64), (ALAW, 8), (MULAW, 8)]
LIST, SECOND = chunk(b"LIST", b"INFOISFT\x04\0\0\0abc\0"), chunk(b"data", bytes(range(200)) * 40)
FILES = {
    **{
        f"{tag}, {bits} bits, {channels} channels, {'longer' if used else 'short'} header": wav(
            tag, bits, channels, used=used
        )
        for tag, bits in FORMATS
        for channels in (1, 2, 6)
        for used in (None, bits)
    },
    "20 of 24 bits": wav(bits=24, used=20),
    "24 of 32 bits": wav(bits=32, used=24),
    "chunks before": wav(before=chunk(b"JUNK", b"x" * 29) + LIST),
    "chunks after": wav(bits=8, after=LIST + chunk(b"id3 ", b"x" * 31)),
    "many chunks": wav(before=LIST * 99),
    "two chunks of data": wav(after=SECOND),
    "a chunk of data after the end": wav() + SECOND,
    "no room for a last sample": wav(channels=2, more=b"abc"),
    "never finished": wav(size=0xFFFFFFFF, riff=0xFFFFFFFF),
    "never finished, of 0 bytes": wav(size=0, riff=0),
    "data of unknown size": wav(size=0xFFFFFFFF),
    "data that is too long": wav(size=FRAMES * 2 + 400, riff=0),
    "data that is too short": wav(size=FRAMES * 2 - 400),
    "no data": wav(size=0),
    "DTS": wav(channels=2, begin=b"\xfe\x7f\x01\x80"),
    "S/PDIF": wav(channels=2, begin=b"\x72\xf8\x1f\x4e\x01\x00"),
}


def waveforms(content: bytes, decoder: Any, **settings: Any) -> list[Any]:
    sounds: Any = lk.AudioDataset([{"wav": content}], decoder=decoder, cache_dir=None, **settings)
    return [(sample["waveform"].numpy(), sample["sample_rate"], sample.get("length")) for sample in sounds]


@pytest.mark.each_value
@pytest.mark.parametrize("name", FILES)
def test_wav_is_the_same_by_both_decoders(name: str) -> None:
    need_decoder("torchcodec")
    for settings in ({}, {"clip_s": 0.27, "clips": "all"}):
        one, other = (waveforms(FILES[name], decoder, **settings) for decoder in ("pyav", "torchcodec"))
        assert len(one) == len(other) >= 1
        for (wave, rate, length), (same, as_fast, as_long) in zip(one, other, strict=True):
            assert (rate, length) == (as_fast, as_long) != (0, 0)
            np.testing.assert_array_equal(wave, same)


@pytest.mark.each_value
@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000, 96000])
def test_a_clip_of_wav_begins_at_its_sample(rate: int) -> None:
    """At each of many places: times in seconds must not round to the sample before or after it."""
    need_decoder("torchcodec")
    values = np.arange(rate, dtype=np.int32) << 8
    form = struct.pack("<HHIIHH", PCM, 1, rate, rate * 4, 4, 32)
    body = b"WAVE" + chunk(b"fmt ", form) + chunk(b"data", values.tobytes())
    sounds = lk.AudioDataset([{"wav": chunk(b"RIFF", body)}], clip_s=0.25, decoder="torchcodec")
    found = set()
    loader = lk.Loader(sounds, seed=1)
    for _ in range(200):
        for batch in loader:
            wave = (batch["waveform"][0, 0].double() * 2**23).round().long()
            assert np.array_equal(wave.numpy(), np.arange(len(wave)) + int(wave[0]))
            assert int(batch["length"]) == len(wave) == round(rate / 4)
            found.add(int(wave[0]))
    assert len(found) > 150
