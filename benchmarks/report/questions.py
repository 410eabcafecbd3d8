"""The scripts, in the order of the suite, and what each declares."""

import __future__

import ast
from functools import cache
from typing import Any

from report.declare import Report
from report.results import BENCHMARKS

QUESTIONS = (
    *(
        "rows",
        "per_sample",
        "pictures",
        "photographs",
        "cached",
        "media",
        "seeding",
        "large",
        "tokens",
        "stragglers",
        "transport",
    ),
    *(
        "startup",
        "free_threads",
        "memory",
        "peers/peers_throughput",
        "tar",
        "order",
        "resume",
        "shard_order",
        "collate",
        "text",
    ),
    *(
        "balance",
        "packing",
        "peers/packed_throughput",
        "tokenising",
        "chats",
        "data_wait",
        "index",
        "formats_mds_litdata",
        "formats_rows",
        "cloud",
        "cloud_cases",
        "cloud_shards",
    ),
    *("ranges", "hedging", "device", "device_step", "peers/peers_resume", "peers/packed_resume"),
)


@cache
def declared(question: str) -> Report:
    """Return what a script declares, without importing it: it may need a peer that is not installed.

    Only the statements that name REPORT are run, and what they use of the module: its constants and functions.
    """
    tree = ast.parse((BENCHMARKS / f"{question}.py").read_text())
    kept = {node for node in tree.body if "REPORT" in _names(node) and not isinstance(node, ast.FunctionDef)}
    kept |= {node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "report.declare"}
    while True:
        wanted = {name for node in kept for name in _names(node)}
        more = {node for node in tree.body if _defines(node) & wanted} - kept
        if not more:
            break
        kept |= more
    body: list[ast.stmt] = [node for node in tree.body if node in kept]
    space: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag  # what functions are annotated with is not imported
    exec(compile(ast.Module(body, []), question, "exec", flags=flags), space)
    report: Report = space["REPORT"]
    return report


def asks(question: str) -> str:
    """Return what a script asks: the first sentence of its docstring."""
    text = ast.get_docstring(ast.parse((BENCHMARKS / f"{question}.py").read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def file_of(question: str) -> str:
    """Return the name of a script's own CSV file."""
    return question.rpartition("/")[2]


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {name for target in targets for name in _names(target)}
