"""Add to the site what is made elsewhere: a notebook for each tutorial, the benchmarks' pictures, the version; say what is searched."""

import re
from pathlib import Path
from typing import Any

import jupytext
from mkdocs.structure.files import File, Files

RESULTS = "benchmarks/results"
# Pages that record what was: a search would find them before the page that says what is.
NOT_SEARCHED = ("decisions/", "changelog.md", "benchmark-targets.md")
GUIDES = ("howto/", "tutorials/", "concepts/", "moving/")  # before the reference and the project's pages


def on_config(config: Any) -> Any:
    """Show the version on each page."""
    source = Path(config["docs_dir"]).parent.joinpath("loaderkit", "__init__.py").read_text()
    if version := re.search(r'^__version__ = "(.*)"$', source, re.MULTILINE):
        config["copyright"] = f"loaderkit {version[1]}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the benchmarks' pictures as `pictures/NAME.png`."""
    for picture in sorted(Path(config["docs_dir"]).parent.joinpath(RESULTS).glob("*.png")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, *, page: Any = None, **_: Any) -> str:
    """Say how much a page counts in a search, and point its pictures and its notebook to their place in the site.

    As written, the pictures show on GitHub too. The notebooks are only in the site.
    """
    place = "" if page is None else page.file.src_uri
    if place.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    elif place.startswith(GUIDES):
        page.meta["search"] = {"boost": 2}
    name = place.removesuffix(".md").partition("tutorials/")[2]
    if name and name != "index":
        title, rest = markdown.split("\n", 1)
        markdown = f'{title}\n\n<a href="../{name}.ipynb" download>This page as a notebook</a>\n{rest}'
    return markdown.replace(f"](../{RESULTS}/", "](pictures/")


# What a notebook away from the site cannot show: pictures (its code draws them) and links to pages.
ONLY_ON_THE_SITE = re.compile(r"^!\[.*\]\(.*\)\n\n", re.MULTILINE)
LINK_TO_A_PAGE = re.compile(r"\[([^\]]+)\]\([^):]+\.md(#[^)]*)?\)")
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def on_post_build(config: Any) -> None:
    """Turn each tutorial's page into `tutorials/NAME.ipynb` of the site."""
    for page in sorted(Path(config["docs_dir"], "tutorials").glob("*.md")):
        if page.stem != "index":
            target = Path(config["site_dir"], "tutorials", f"{page.stem}.ipynb")
            target.parent.mkdir(parents=True, exist_ok=True)
            jupytext.write(notebook(page.read_text()), target)


def notebook(page: str) -> Any:
    """Make cells of prose and code. Commands stay prose: a reader runs them in a terminal."""
    text = LINK_TO_A_PAGE.sub(r"\1", ONLY_ON_THE_SITE.sub("", page)).replace("\n```sh\n", "\n```console\n")
    made = jupytext.reads(text, fmt="md")
    made.metadata["kernelspec"] = KERNEL
    return made
