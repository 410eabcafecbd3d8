"""The data that every peer writes in its own format: sequences of tokens, and pictures with a class."""

import io
import pickle
import random
from pathlib import Path

import numpy as np


def write_sources(folder: Path, sequences: int, pictures: int) -> None:
    draw = np.random.default_rng(0)
    lengths = draw.integers(16, 513, sequences)
    np.save(folder / "ends.npy", np.cumsum(lengths))
    np.save(folder / "tokens.npy", draw.integers(0, 50_000, lengths.sum()).astype(np.uint16))
    (folder / "pictures.pkl").write_bytes(pickle.dumps(jpegs(pictures)))


def jpegs(count: int, side: int = 96) -> list[tuple[bytes, int]]:
    """Crop scikit-learn's two sample pictures: files of JPEG, and a class of two."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    sources = [Image.fromarray(picture) for picture in load_sample_images().images]
    draw, found = random.Random(0), []
    for number in range(count):
        picture, file = sources[number % len(sources)], io.BytesIO()
        left, top = draw.randrange(picture.width - side), draw.randrange(picture.height - side)
        picture.crop((left, top, left + side, top + side)).save(file, "JPEG", quality=90)
        found.append((file.getvalue(), number % 2))
    return found
