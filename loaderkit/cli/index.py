"""`loaderkit index`: write the index files of shards in parallel; a rerun skips shards with a fresh index."""

import argparse
import sys
from collections import Counter

from loaderkit.cli.arguments import Commands, add_jobs, add_settings, executor_of, see_own_modules
from loaderkit.cli.report import complain, say
from loaderkit.cli.source import add_storage, storage_from
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.find_shards import expand
from loaderkit.datasets.formats import format_named, known_suffixes
from loaderkit.datasets.indexing import GOOD, IndexJob, Outcome, index_each, write_folder_indexes
from loaderkit.system.terminal import coloured


def add_to(commands: Commands) -> None:
    """Add the command to a parser's subcommands."""
    parser = commands.add_parser(
        "index",
        description="Write the index files of shards into a folder, outside of theirs. Shards with a fresh index are "
        "skipped. The exit code is 1 if a shard failed, or with --check if an index is not fresh.",
        examples=(
            ("loaderkit index 'shards/*.tar'", "index all tar shards of a folder"),
            ("loaderkit index s3://bucket/shards/ --folder-index", "write one index of all shards into the bucket"),
        ),
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, folder, glob or URL")
    parser.add_argument("--format", help="such as jsonl or tar, or MODULE:CLASS; default: by suffix")
    parser.add_argument(
        "--index-dir",
        metavar="DIR",
        help="folder of the index files; default: $LOADERKIT_INDEX_DIR, or ~/.cache/loaderkit/index",
    )
    parser.add_argument(
        "--beside",
        action="store_true",
        help="also write each local shard's index next to it; other tools that read the whole folder then fail",
    )
    parser.add_argument(
        "--folder-index",
        action="store_true",
        help="also write one index of all shards next to their folder, also in a bucket: remote datasets then open at once",
    )
    add_jobs(parser)
    parser.add_argument(
        "--check", action="store_true", help="only report the index files' status, also of a bucket's folder.lkindex"
    )
    parser.add_argument(
        "--checksum",
        action="store_true",
        help="read each shard: record its checksum, or compare it with the recorded one",
    )
    parser.add_argument("--quiet", action="store_true", help="print only shards that failed")
    add_settings(parser, "--option", "an argument of the format's dataset; VALUE is JSON or plain text")
    add_storage(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Index the shards, print the results and return the exit code."""
    try:
        storage = storage_from(arguments)
        see_own_modules()
        kind = format_named(arguments.format) if arguments.format else None
        shards = expand(arguments.paths, kind.suffixes if kind else known_suffixes(), storage)
    except (ValueError, OSError, ImportError) as error:
        complain(f"loaderkit index: {error}")
        return 1
    options = dict(arguments.option)
    beside = arguments.beside and not arguments.check
    job = IndexJob(
        arguments.format, arguments.index_dir, options, arguments.check, arguments.checksum, beside, storage=storage
    )
    counts: Counter[str] = Counter()
    samples = 0
    with executor_of(arguments) as (jobs, executor):
        for shard, outcome in index_each(shards, job, jobs=jobs, executor=executor):
            counts[outcome.status] += 1
            samples += outcome.count
            line = _line(shard, outcome)
            if outcome.status not in GOOD:
                complain(line)
            elif not arguments.quiet:
                say(line)
    all_good = counts.total() == sum(counts[status] for status in GOOD)
    if arguments.folder_index and not arguments.check and all_good:
        try:
            for place in write_folder_indexes(shards, job):
                say(f"{coloured('written', 'green', sys.stdout)} {place}")
        except (OSError, ShardError) as error:
            complain(f"loaderkit index: {error}")
            return 1
    summary = ", ".join(f"{number:,} {status}" for status, number in sorted(counts.items()))
    say(f"{len(shards):,} shard{'s' * (len(shards) != 1)}: {summary}; {samples:,} samples")
    return 0 if all_good else 1


def _line(shard: str, outcome: Outcome) -> str:
    good = outcome.status in GOOD
    stream, style = (sys.stdout, "green") if good else (sys.stderr, "bold red")
    status = coloured(outcome.status, style, stream) + " " * (8 - len(outcome.status))
    if good and outcome.status != "without":
        return f"{status}{shard}  {outcome.count:,} samples"
    name = "" if outcome.detail.startswith(shard) else f"{shard}: "  # a ShardError names its shard
    return f"{status}{name}{outcome.detail}"
