"""Write a notebook next to each tutorial when the site is built. The page is the only source."""

from pathlib import Path
from typing import Any

import jupytext


def on_post_build(config: Any) -> None:
    """Turn each tutorial's page into `tutorials/NAME.ipynb` of the site."""
    for page in sorted(Path(config["docs_dir"], "tutorials").glob("*.md")):
        if page.stem != "index":
            target = Path(config["site_dir"], "tutorials", f"{page.stem}.ipynb")
            target.parent.mkdir(parents=True, exist_ok=True)
            jupytext.write(jupytext.read(page), target)
