"""Draw the diagrams of the documentation as SVG: python docs/diagrams/draw.py.

A diagram is boxes on a grid, frames around some of them, and arrows between neighbours. The colours suit light and dark pages.
"""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
FONT, CHARACTER, LINE = 13, 7.3, 17  # pixels: size of letters, their width, height of a line
HEIGHT, FRAME = 46, 14
Place = tuple[float, float]  # column and row


@dataclass(frozen=True, kw_only=True)
class Diagram:
    """Boxes by name: column, row, and text; "|" begins a new line."""

    boxes: dict[str, tuple[float, float, str]]
    arrows: list[tuple[str, str, str]]  # from, to, label
    frames: dict[str, list[str]] = field(default_factory=dict)  # boxes by the frame's title
    width: int = 150  # of a box
    step: tuple[int, int] = (190, 90)  # from a column or row to the next


DIAGRAMS = {
    "tutorials": Diagram(
        boxes={
            "A": (0, 0, "Write the data"),
            "B": (1, 0, "Describe it"),
            "C": (2, 0, "Look at a batch"),
            "D": (3, 0, "Train, kill,|resume"),
            "E": (4, 0, "Compare|the losses"),
        },
        arrows=[("A", "B", ""), ("B", "C", ""), ("C", "D", ""), ("D", "E", "")],
        width=130,
        step=(165, 90),
    ),
    "elastic": Diagram(
        boxes={
            "A": (0, 0, "torchrun starts|4 ranks"),
            "B": (1, 0, "they save|at step 500"),
            "C": (2, 0, "a host fails|at step 560"),
            "D": (2, 1, "torchrun ends all,|starts 2 ranks"),
            "E": (1, 1, "they load|step 500"),
            "F": (0, 1, "the rest, each|sample once"),
        },
        arrows=[("A", "B", ""), ("B", "C", ""), ("C", "D", ""), ("D", "E", ""), ("E", "F", "")],
    ),
    "bucket": Diagram(
        boxes={
            "I": (0, 0, "folder.lkindex"),
            "D": (2, 0, "dataset"),
            "B": (0, 1, "bucket"),
            "W": (2, 1, "worker"),
            "C": (1, 2, "cache"),
        },
        arrows=[
            ("I", "D", "sizes and offsets"),
            ("B", "W", "the first samples: ranges"),
            ("B", "C", "whole shards: 16 ranges|of 4 MiB at a time"),
            ("C", "W", "all later|samples"),
        ],
        width=120,
        step=(220, 90),
    ),
    "sample": Diagram(
        boxes={
            "A": (0, 0, "1 cursor"),
            "B": (0, 1, "2 plan"),
            "C": (0, 2, "3 order"),
            "D": (0, 3, "4 batch key"),
            "E": (1.6, 3, "5 seed"),
            "F": (1.6, 2, "6 read and decode"),
            "G": (1.6, 1, "7 collate"),
            "H": (1.6, 0, "8 write to a slot"),
            "I": (3.2, 0, "9 views of the slot"),
            "J": (3.2, 1, "10 put back in order"),
            "K": (3.2, 2, "11 cursor counts"),
            "L": (3.2, 3, "12 yield"),
            "M": (3.2, 4, "13 copy to the device"),
        },
        arrows=[
            *((*pair, "") for pair in zip("ABC", "BCD", strict=True)),
            *((*pair, "") for pair in zip("EFG", "FGH", strict=True)),
            *((*pair, "") for pair in zip("IJKL", "JKLM", strict=True)),
            ("D", "E", "positions,|indices"),
            ("H", "I", "slot number"),
        ],
        frames={"training process": list("ABCD"), "worker process": list("EFGH"), "training process ": list("IJKLM")},
        width=160,
        step=(175, 80),
    ),
    "concepts": Diagram(
        boxes={
            "C": (0, 0, "cursor"),
            "P": (1, 0, "plan"),
            "O": (2, 0, "order"),
            "D": (2, 1, "dataset"),
            "B": (0, 1, "batch"),
        },
        arrows=[
            ("C", "P", "position"),
            ("P", "O", "positions"),
            ("O", "D", "indices"),
            ("D", "B", "samples"),
            ("B", "C", "counted"),
        ],
        width=110,
        step=(205, 90),
    ),
    "streams": Diagram(
        boxes={
            "S": (0, 0, "shuffle|the shards"),
            "C": (1, 0, "cut them into|lanes, once"),
            "E": (2, 0, "each epoch: shuffle|each lane's shards"),
            "W": (3, 0, "shuffle within|windows of a lane"),
            "T": (4, 0, "take a batch from|each lane in turn"),
        },
        arrows=[("S", "C", ""), ("C", "E", ""), ("E", "W", ""), ("W", "T", "")],
        width=140,
        step=(170, 90),
    ),
    "engines": Diagram(
        boxes={
            "A": (0, 0, "num_workers = 0?"),
            "B": (0, 1, "worker_init_fn|or timeout?"),
            "C": (0, 2, "rows in memory, no trans-|form, no collate_fn?"),
            "G": (0, 3, "no GIL, and data|that is thread_safe?"),
            "D": (0, 4, "ring on Linux,|torch elsewhere"),
            "X": (1.5, 0, "inline"),
            "Y": (1.5, 1, "ring on Linux,|torch elsewhere"),
            "Z": (1.5, 2, "inline"),
            "T": (1.5, 3, "threads"),
        },
        arrows=[
            ("A", "X", "yes"),
            ("A", "B", "no"),
            ("B", "Y", "yes"),
            ("B", "C", "no"),
            ("C", "Z", "yes"),
            ("C", "G", "no"),
            ("G", "T", "yes"),
            ("G", "D", "no"),
        ],
        width=190,
        step=(190, 84),
    ),
}


def draw(diagram: Diagram) -> str:
    """Return a diagram as SVG."""
    columns = [column for column, _, _ in diagram.boxes.values()]
    rows = [row for _, row, _ in diagram.boxes.values()]
    edge = FRAME + (LINE if diagram.frames else 0)
    width = int(max(columns) * diagram.step[0] + diagram.width + 2 * FRAME)
    height = int(max(rows) * diagram.step[1] + HEIGHT + 2 * edge)

    def middle(name: str) -> Place:
        column, row, _ = diagram.boxes[name]
        return FRAME + column * diagram.step[0] + diagram.width / 2, edge + row * diagram.step[1] + HEIGHT / 2

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="{FONT}" text-anchor="middle">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#888"/></marker></defs>',
    ]
    for title, names in diagram.frames.items():
        places = [middle(name) for name in names]
        left, top = (min(place[axis] for place in places) for axis in (0, 1))
        right, bottom = (max(place[axis] for place in places) for axis in (0, 1))
        x, y = left - diagram.width / 2 - FRAME / 2, top - HEIGHT / 2 - FRAME / 2 - LINE
        w, h = right - left + diagram.width + FRAME, bottom - top + HEIGHT + FRAME + LINE
        parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6" fill="none" stroke="#888" stroke-dasharray="4"/>'
        )
        parts += text(title.strip(), (x + w / 2, y + LINE / 2 + 3), "#888")
    for start, end, label in diagram.arrows:
        parts += arrow(middle(start), middle(end), label, diagram.width)
    for name, (_, _, words) in diagram.boxes.items():
        x, y = middle(name)
        parts.append(
            f'<rect x="{x - diagram.width / 2:g}" y="{y - HEIGHT / 2:g}" width="{diagram.width}" height="{HEIGHT}" rx="6" '
            'fill="#4051b5"/>'
        )
        parts += text(words.strip(), (x, y), "#fff")
    return "\n".join([*parts, "</svg>\n"])


def arrow(start: Place, end: Place, label: str, width: int) -> list[str]:
    """Draw an arrow from one box's side to another's."""
    (x, y), (u, v) = start, end
    if abs(u - x) > width / 2:
        side = width / 2 if u > x else -width / 2
        x, u = x + side, u - side
    else:
        side = HEIGHT / 2 if v > y else -HEIGHT / 2
        y, v = y + side, v - side
    found = [
        f'<path d="M{x:g} {y:g} {u:g} {v:g}" stroke="#888" stroke-width="1.5" fill="none" marker-end="url(#tip)"/>'
    ]
    if label:
        level = abs(v - y) < 1
        lines = label.count("|") + 1
        longest = max(map(len, label.split("|")))
        right = (x + u) / 2 + CHARACTER * longest / 2 + 8
        place = ((x + u) / 2, y - 6 - LINE * lines / 2) if level else (right, (y + v) / 2)
        found += text(label, place, "#888")
    return found


def text(words: str, place: Place, colour: str) -> list[str]:
    """Write lines of text around a place."""
    lines = words.split("|")
    top = place[1] + FONT / 3 - LINE * (len(lines) - 1) / 2
    return [
        f'<text x="{place[0]:g}" y="{top + LINE * number:g}" fill="{colour}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]


if __name__ == "__main__":
    for name, diagram in DIAGRAMS.items():
        (HERE / f"{name}.svg").write_text(draw(diagram))
