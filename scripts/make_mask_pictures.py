#!/usr/bin/env python3
"""Draws docs/pictures/*.svg: who sees whom, computed from the formulas of docs/conventions.md.

    scripts/make_mask_pictures.py            write the pictures
    scripts/make_mask_pictures.py --check    exit 1 if a committed picture differs from its formula
    scripts/make_mask_pictures.py --text     print every panel as a text grid
    scripts/make_mask_pictures.py --cases    print every panel as a line of numbers, which
                                             tests/mask_pictures_test.cpp holds against the code's masks
"""

import pathlib
import sys
from dataclasses import dataclass, field

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "pictures"
UNBOUNDED = -1


@dataclass
class Panel:
    """One sequence: sizes, options, and the caption under its grid."""

    caption: str
    rows_q: int
    rows_kv: int
    position: object = "bottom-right"  # or "top-left", or the given offset
    causal: bool = False
    window: tuple = (UNBOUNDED, UNBOUNDED)  # left, right
    q_length: int = None
    kv_length: int = None
    kv_start: int = 0
    segments: list = field(default_factory=list)  # id of each row; queries and keys alike
    ranges: list = field(default_factory=list)  # [first, last) of each query

    def offset(self):
        len_q = self.rows_q if self.q_length is None else self.q_length
        len_kv = self.rows_kv if self.kv_length is None else self.kv_length
        return {"bottom-right": len_kv - len_q, "top-left": 0}.get(self.position, self.position)

    def is_padding(self, i):
        return self.q_length is not None and i >= self.q_length

    def exists(self, j):
        last = self.rows_kv if self.kv_length is None else self.kv_length
        return self.kv_start <= j < last

    def sees(self, i, j):
        if self.is_padding(i) or not self.exists(j):
            return False
        p = i + self.offset()
        left, right = self.window
        right = 0 if self.causal else right
        if left != UNBOUNDED and j < p - left:
            return False
        if right != UNBOUNDED and j > p + right:
            return False
        if self.segments and self.segments[i] != self.segments[j]:
            return False
        if self.ranges and not self.ranges[i][0] <= j < self.ranges[i][1]:
            return False
        return True


def prefix(rows, length):
    return [(0, max(length, i + 1)) for i in range(rows)]


def image(rows, first, last):
    """Text is causal; the rows of the image [first, last) also see the whole image."""
    return [(0, last if first <= i < last else i + 1) for i in range(rows)]


PICTURES = {
    "corners": (
        "Causal attention with 3 queries and 6 keys, then 6 queries and 3 keys",
        [
            [
                Panel("bottom-right (default)", 3, 6, causal=True),
                Panel("top-left", 3, 6, "top-left", causal=True),
                Panel("given, q_offset = 1", 3, 6, 1, causal=True),
            ],
            [
                Panel("bottom-right (default)", 6, 3, causal=True),
                Panel("top-left", 6, 3, "top-left", causal=True),
                Panel("given, q_offset = -1", 6, 3, -1, causal=True),
            ],
        ],
    ),
    "windows": (
        "Windows include both of their ends",
        [
            [
                Panel("window 2, 1", 7, 7, window=(2, 1)),
                Panel("causal, window 2, 0", 7, 7, causal=True, window=(2, 0)),
                Panel("window -1, 1", 7, 7, window=(-1, 1)),
            ],
            [
                Panel("3 x 7, window 2, 1, bottom-right", 3, 7, window=(2, 1)),
                Panel("3 x 7, window 2, 1, top-left", 3, 7, "top-left", window=(2, 1)),
            ],
        ],
    ),
    "lengths": (
        "Lengths take rows and keys away and move nothing",
        [
            [
                Panel("causal, kv_starts 2 (left padding)", 7, 7, causal=True, kv_start=2),
                Panel("causal, q_lengths 5, kv_lengths 5", 7, 7, causal=True, q_length=5, kv_length=5),
                Panel("causal, q_lengths 3, kv_lengths 6", 4, 7, causal=True, q_length=3, kv_length=6),
            ]
        ],
    ),
    "segments": (
        "segment_ids keep packed documents apart",
        [
            [
                Panel("segments 0 0 0 1 1 1 1 2", 8, 8, segments=[0, 0, 0, 1, 1, 1, 1, 2]),
                Panel("the same, causal", 8, 8, causal=True, segments=[0, 0, 0, 1, 1, 1, 1, 2]),
                Panel("the same, causal, window 1, 0", 8, 8, causal=True, window=(1, 0),
                      segments=[0, 0, 0, 1, 1, 1, 1, 2]),
            ]
        ],
    ),
    "kv_ranges": (
        "kv_ranges give each query its own interval of keys, and intersect everything else",
        [
            [
                Panel("prefix of 3, then causal", 7, 7, ranges=prefix(7, 3)),
                Panel("image at rows 2 to 4 in causal text", 7, 7, ranges=image(7, 2, 5)),
                Panel("the same with causal on: lost", 7, 7, causal=True, ranges=image(7, 2, 5)),
            ]
        ],
    ),
}

CELL, GAP, LEFT, TOP, CAPTION = 18, 30, 26, 22, 30
PANEL_WIDTH = 8 * CELL + LEFT + GAP
STYLE = (
    "text{font:11px sans-serif;fill:#57606a}.c{font-size:12px;fill:#24292f}"
    ".y{fill:#2f81f7}.n{fill:#d8dee4}.g{fill:#eff2f5}.p{fill:#fff}.e{stroke:#cf222e;stroke-width:2}"
)


def boxes(panel, kind, want):
    """One path for all cells of a kind; cells touch each other with a 1-pixel seam."""
    path = "".join(
        f"M{j * CELL} {i * CELL}h{CELL - 1}v{CELL - 1}h{1 - CELL}z"
        for i in range(panel.rows_q)
        for j in range(panel.rows_kv)
        if want(i, j)
    )
    return f'<path class="{kind}" d="{path}"/>' if path else ""


def draw_panel(panel, x, y):
    empty = [i for i in range(panel.rows_q) if not any(panel.sees(i, j) for j in range(panel.rows_kv))]
    gone = lambda i, j: panel.is_padding(i) or not panel.exists(j)
    out = [f'<g transform="translate({x} {y})">']
    out += [f'<text x="{j * CELL + 5}" y="-6">{j}</text>' for j in range(panel.rows_kv)]
    out += [f'<text x="-14" y="{i * CELL + 13}">{i}</text>' for i in range(panel.rows_q)]
    out.append(boxes(panel, "y", panel.sees))
    out.append(boxes(panel, "n", lambda i, j: not panel.sees(i, j) and not gone(i, j)))
    out.append(boxes(panel, "g", lambda i, j: gone(i, j)))
    for i in range(panel.rows_q):
        j = i + panel.offset()
        if 0 <= j < panel.rows_kv and not panel.is_padding(i):
            out.append(f'<circle class="p" cx="{j * CELL + 8.5}" cy="{i * CELL + 8.5}" r="3"/>')
    for i in empty:
        at = i * CELL + CELL // 2
        out.append(f'<path class="e" d="M0 {at}h{panel.rows_kv * CELL - 1}"/>')
    out.append(f'<text class="c" x="0" y="{panel.rows_q * CELL + 18}">{panel.caption}</text></g>')
    return "".join(out)


def draw(title, rows):
    width = LEFT + max(len(row) for row in rows) * PANEL_WIDTH + GAP
    height, parts = 10, []
    for row in rows:
        for n, panel in enumerate(row):
            parts.append(draw_panel(panel, LEFT + n * PANEL_WIDTH, height + TOP))
        height += TOP + max(panel.rows_q for panel in row) * CELL + CAPTION
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{title}"><title>{title}</title><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>' + "\n".join(parts) + "</svg>\n"
    )


def text(panel):
    lines = [f"{panel.caption}"]
    for i in range(panel.rows_q):
        lines.append("  " + " ".join("x" if panel.sees(i, j) else "." for j in range(panel.rows_kv)))
    return "\n".join(lines)


def case(panel):
    """Sizes, corner and offset, causal, window, lengths (-1 = none), counts and values of segments and ranges, grid."""
    corner = {"bottom-right": 0, "top-left": 1}.get(panel.position, 2)
    optional = lambda value: -1 if value is None else value
    bounds = [bound for pair in panel.ranges for bound in pair]
    numbers = [panel.rows_q, panel.rows_kv, corner, panel.offset(), int(panel.causal), *panel.window,
               optional(panel.q_length), optional(panel.kv_length), panel.kv_start,
               len(panel.segments), *panel.segments, len(bounds), *bounds]
    grid = "".join("x" if panel.sees(i, j) else "." for i in range(panel.rows_q) for j in range(panel.rows_kv))
    return " ".join(map(str, numbers)) + " " + grid


def main(arguments):
    wrong = []
    for name, (title, rows) in PICTURES.items():
        path, content = FOLDER / f"{name}.svg", draw(title, rows)
        if "--text" in arguments:
            print(f"{title}\n" + "\n".join(text(panel) for row in rows for panel in row) + "\n")
        elif "--cases" in arguments:
            print("\n".join(case(panel) for row in rows for panel in row))
        elif "--check" in arguments:
            if not path.exists() or path.read_text() != content:
                wrong.append(path.name)
        else:
            path.write_text(content)
    if wrong:
        print("differ from their formula, run scripts/make_mask_pictures.py:", *wrong, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
