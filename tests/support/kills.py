"""Kill a script at random steps, resume it, and compare its final weights with those of the uninterrupted run."""

import random
import re
import signal
from pathlib import Path

import scripts


def count_exact(
    folder: Path,
    script: Path,
    *options: str,
    steps: int,
    kills: int,
    code: int = -signal.SIGKILL,
    preload: tuple[str, ...] = scripts.PRELOAD,
) -> int:
    """Return how many of the killed runs end with the weights of the uninterrupted one.

    The script trains that many steps, prints its "final weights: ...", and takes `--folder` and `--kill-after`; it resumes
    if the folder has a checkpoint. `code` is its exit code when it is killed.
    """

    def run(name: str, *more: str, code: int = 0) -> str:
        return scripts.run(folder, script, *options, "--folder", name, *more, code=code, preload=preload)

    def weights(text: str) -> str:
        return re.findall(r"final weights: (\w+)", text)[0]

    whole = weights(run("whole"))
    exact = 0
    for number in range(kills):
        step = random.Random(number).randrange(1, steps)
        killed = run(f"killed-{number}", "--kill-after", str(step), code=code)
        assert "final weights" not in killed
        exact += weights(run(f"killed-{number}")) == whole
    return exact
