#!/usr/bin/env python3
"""Draws TFLOP/s against length from the JSON of bench/gpu_bench.py or bench/gpu_backward_bench.py, ours beside its rivals.

    bench/plot_gpu.py bench.json docs/pictures/forward_h200.svg [--title TEXT]

One panel a head dimension and mask; points of the set `table` alone. The picture stands by itself: no font, no script, no network.
"""

import argparse
import json
from pathlib import Path

COLORS = {"": "#c2410c", "cudnn": "#2563eb", "flash": "#6b7280"}
NAMES = {"": "Tilewise", "cudnn": "cuDNN", "flash": "PyTorch flash"}
WIDTH, HEIGHT, LEFT, TOP = 210, 150, 48, 46


def points_of(path):
    points = {}
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        if row.get("set") == "table" and row["tflops"]:
            key = row["head_dim"], row["causal"]
            points.setdefault(key, {}).setdefault(row["rival"] or "", []).append((row["seqlen_q"], row["tflops"]))
    return points


def panel(lines, x0, y0, title, top, lengths):
    x = lambda s: x0 + WIDTH * lengths.index(s) / max(1, len(lengths) - 1)
    y = lambda t: y0 + HEIGHT * (1 - t / top)
    out = [f'<text x="{x0}" y="{y0 - 8}" font-weight="bold">{title}</text>']
    for tick in range(0, top + 1, 200):
        out.append(f'<path d="M{x0} {y(tick):.1f}h{WIDTH}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{x0 - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for s in lengths:
        out.append(f'<text x="{x(s):.1f}" y="{y0 + HEIGHT + 16}" text-anchor="middle">{s}</text>')
    for rival, dots in lines.items():
        if rival not in COLORS:
            continue
        path = " ".join(f"{x(s):.1f},{y(t):.1f}" for s, t in sorted(dots))
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[rival]}" stroke-width="2"/>')
        out += [f'<circle cx="{x(s):.1f}" cy="{y(t):.1f}" r="3" fill="{COLORS[rival]}"/>' for s, t in dots]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json")
    parser.add_argument("svg")
    parser.add_argument("--title", default="TFLOP/s against length, batch x length = 16,384, heads x head_dim = 2,048")
    o = parser.parse_args()
    points = points_of(o.json)
    if not points:
        raise SystemExit(f"{o.json} has no point of the set `table`: run bench/gpu_bench.py --sets table")
    dims = sorted({d for d, _ in points})
    lengths = sorted({s for lines in points.values() for dots in lines.values() for s, _ in dots})
    most = max(t for lines in points.values() for dots in lines.values() for _, t in dots)
    top = int(most / 200 + 1) * 200
    width, height = LEFT + len(dims) * (WIDTH + 56), TOP + 2 * (HEIGHT + 56) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>', f'<text x="{LEFT}" y="16" font-size="13">{o.title}</text>']
    at = LEFT + 470
    for rival, color in COLORS.items():
        out.append(f'<path d="M{at} 12h18" stroke="{color}" stroke-width="3"/><text x="{at + 24}" y="16">{NAMES[rival]}</text>')
        at += 90
    for column, d in enumerate(dims):
        for row, causal in enumerate((False, True)):
            if (d, causal) in points:
                out += panel(points[d, causal], LEFT + column * (WIDTH + 56), TOP + 10 + row * (HEIGHT + 56),
                             f"head_dim {d}, {'causal' if causal else 'full'}", top, lengths)
    Path(o.svg).write_text("\n".join(out + ["</svg>", ""]))
    print(f"{o.svg}: {sum(len(lines) for lines in points.values())} lines")


if __name__ == "__main__":
    main()
