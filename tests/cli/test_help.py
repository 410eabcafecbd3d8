"""The command's help: what there is, with examples; colours only where somebody sees them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import scripts
from command_line import loaderkit

from loaderkit.cli.command import main

COMMANDS = ("bench", "doctor", "index", "inspect", "lengths", "locate", "preview", "shard", "verify")


def test_the_command_alone_prints_its_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: loaderkit ")
    assert re.findall(r"^    (\w+) ", text, re.MULTILINE) == list(COMMANDS)
    assert "\n  loaderkit doctor " in text.split("\nexamples:\n")[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_commands_help_ends_with_two_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    what, example, *rest = capsys.readouterr().out.split("\nexamples:\n")[1].splitlines()
    for comment, line in ((what, example), tuple(rest)):
        assert comment.startswith("  # ")
        assert line.startswith(f"  loaderkit {command}")


ON_A_TERMINAL = """
import os, pty, sys
from loaderkit.cli.command import main
os.environ.pop("NO_COLOR", None)
os.environ.update({"TERM": "xterm-256color"} | dict.fromkeys(sys.argv[1:], "1"))
pid, terminal = pty.fork()
if not pid:
    sys.exit(main(["doctor"]))
shown = b""
try:
    while chunk := os.read(terminal, 1 << 16):
        shown += chunk
except OSError:
    pass  # the terminal is closed
sys.stdout.buffer.write(shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("variable", "coloured"), [("", True), ("NO_COLOR", False)])
def test_colours_are_for_terminals_without_no_color(variable: str, coloured: bool, tmp_path: Path) -> None:
    pytest.importorskip("rich")
    assert "\x1b" not in loaderkit("doctor").stdout  # its output is no terminal
    shown = scripts.run_code(tmp_path, ON_A_TERMINAL, *filter(None, [variable]))
    assert "start by" in shown
    assert ("\x1b[32mok" in shown) == coloured
    assert ("\x1b" in shown) == coloured


HELP = """
import sys
from loaderkit.cli.command import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
sys.stdout.flush()
sys.stderr.write(" ".join(sorted({"torch", "numpy", "lightning", "fsspec"} & set(sys.modules))))
"""


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]])
def test_the_help_imports_nothing_large(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, *arguments], capture_output=True, text=True)
    assert "loaderkit" in done.stdout
    assert done.stderr == ""


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "loaderkit"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: loaderkit ")


def test_the_documented_completion_has_each_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    line = re.search(r'^complete -o default -W "([^"]*)" loaderkit$', page, re.MULTILINE)
    assert line is not None
    assert tuple(line[1].split()) == COMMANDS
