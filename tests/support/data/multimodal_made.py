"""Rows that name small pictures and sounds, and documents and conversations with pictures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from images_made import encode, picture
from media_made import audio

PLACEHOLDER = 256  # after the bytes
SIZES = [(40, 30), (1, 1), (90, 61), (28, 28), (57, 120)]  # width and height of picture `n % 5`


def write_pictures(folder: Path, count: int = 5) -> Path:
    """Write "<n>.png", or .jpeg for each third."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        kind = "jpeg" if number % 3 == 2 else "png"
        (folder / name_of(number)).write_bytes(encode(picture(number, size=SIZES[number % 5]), kind))
    return folder


def name_of(number: int) -> str:
    return f"{number}.{'jpeg' if number % 3 == 2 else 'png'}"


def write_sounds(folder: Path, count: int = 5) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number}.wav").write_bytes(audio(seconds=0.5 + number / 5, seed=number))
    return folder


def json_lines(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def documents(count: int, pictures: int = 5) -> list[dict[str, Any]]:
    """Documents of one to eight parts, in both layouts, with at least one text each."""
    rng, made = np.random.default_rng(0), []
    for number in range(count):
        parts: list[Any] = [f"{number}: " + "é" * int(rng.integers(1, 9))]
        parts += [
            int(rng.integers(pictures)) if rng.random() < 0.5 else "word " * int(rng.integers(1, 9))
            for _ in range(rng.integers(0, 8))
        ]
        order = rng.permutation(len(parts))
        parts = [parts[place] for place in order]
        if number % 2:
            images = [name_of(part) if isinstance(part, int) else None for part in parts]
            made.append(
                {"n": number, "texts": [None if isinstance(part, int) else part for part in parts], "images": images}
            )
        else:
            content = [
                {"type": "image", "image": name_of(part)} if isinstance(part, int) else {"type": "text", "text": part}
                for part in parts
            ]
            made.append({"n": number, "content": content})
    return made


def chats(count: int, pictures: int = 5) -> list[dict[str, Any]]:
    """Conversations of one to three turns, with none to three pictures in each question."""
    rng, made = np.random.default_rng(1), []
    for number in range(count):
        messages: list[dict[str, Any]] = []
        for turn in range(1 + number % 3):
            parts: list[dict[str, Any]] = [
                {"type": "image", "image": name_of(int(rng.integers(pictures)))} for _ in range(rng.integers(0, 4))
            ]
            parts.insert(int(rng.integers(len(parts) + 1)), {"type": "text", "text": f"Question {number}.{turn}?"})
            messages.append({"role": "user", "content": parts})
            messages.append({"role": "assistant", "content": f"Answer {number}.{turn}, which is long."})
        made.append({"n": number, "messages": messages})
    return made


def pairs(count: int, pictures: int = 5) -> list[dict[str, Any]]:
    """Preference pairs of these conversations."""
    made = []
    for row in chats(count, pictures):
        *prompt, chosen = row["messages"]
        rejected = {"role": "assistant", "content": f"No {row['n']}{'!' * (3 * row['n'] % 50)}"}
        made.append({"n": row["n"], "prompt": prompt, "chosen": [chosen], "rejected": [rejected]})
    return made
