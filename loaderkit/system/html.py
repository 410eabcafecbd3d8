"""Tables for notebooks."""

from collections.abc import Iterable
from html import escape


def table(title: str, rows: Iterable[tuple[object, ...]]) -> str:
    """Return an HTML table with a title; the first cell of each row is its heading."""
    lines = []
    for heading, *cells in rows:
        values = "".join(f'<td style="text-align:left">{escape(str(cell))}</td>' for cell in cells)
        lines.append(f'<tr><th style="text-align:left">{escape(str(heading))}</th>{values}</tr>')
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"
