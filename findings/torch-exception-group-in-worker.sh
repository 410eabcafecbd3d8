#!/usr/bin/env bash
# A good guess: an exception of a DataLoader's worker is raised in the main process with its type and the worker's traceback, or as a
# RuntimeError with that traceback.
# What happens instead: an ExceptionGroup becomes a TypeError that says nothing about the group. torch makes an exception that has a truthy
# `message` by message=, and Python's ExceptionGroup has a descriptor of this name.
# torch 2.14.1, Python 3.11 or later
# Output seen: 0 workers: ExceptionGroup: two files are damaged (2 sub-exceptions)
# Output seen: 1 worker: TypeError; it names the group or a file: False
# Who meets it: datasets that read by asyncio.TaskGroup or trio, whose errors are groups.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.14.1 numpy==2.4.6

cat > "$folder/case.py" <<'PYTHON'
import traceback

from torch.utils.data import DataLoader


class Damaged:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise ExceptionGroup("two files are damaged", [ValueError("one.png"), ValueError("two.png")])


def error_of(workers):
    try:
        next(iter(DataLoader(Damaged(), num_workers=workers)))
    except Exception as error:
        return error


def main():
    plain, sent = error_of(0), error_of(1)
    print(f"0 workers: {type(plain).__name__}: {plain}")
    named = any(text in "".join(traceback.format_exception(sent)) for text in ("damaged", "one.png"))
    print(f"1 worker: {type(sent).__name__}; it names the group or a file: {named}")
    if type(sent) is not TypeError or named:
        raise SystemExit("the behaviour changed")


if __name__ == "__main__":
    main()
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
