"""A self-contained HTML page with one SVG chart a model and workload: tokens a second over the length, and the table."""

from html import escape

COLOURS = {"eager": "#9a6324", "sdpa": "#4363d8", "tilewise": "#e6194b"}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 460, 260, 70, 40, 24


def chart(title, rows):
    """Bars by length, one colour an implementation; what failed has its reason in place of a bar."""
    lengths = sorted({row["seqlen"] for row in rows})
    top = max((row.get("tokens_per_second", 0) for row in rows), default=0) or 1
    height, group = HEIGHT - BOTTOM - TOP, (WIDTH - LEFT) / len(lengths)
    bar = group * 0.8 / len(COLOURS)
    parts = [f'<text x="{LEFT}" y="14" font-weight="bold">{escape(title)}, tokens a second</text>']
    for share in (0, 0.5, 1):
        y = TOP + height * (1 - share)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ccc"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:,.0f}</text>')
    for row in rows:
        n = list(COLOURS).index(row["implementation"])
        x = LEFT + lengths.index(row["seqlen"]) * group + group * 0.1 + n * bar
        if "failed" in row:
            parts.append(f'<text x="{x + bar / 2:.1f}" y="{HEIGHT - BOTTOM - 4}" text-anchor="middle" fill="{COLOURS[row["implementation"]]}">'
                         f'&#215;<title>{escape(row["failed"])}</title></text>')
            continue
        size = height * row["tokens_per_second"] / top
        parts.append(f'<rect x="{x:.1f}" y="{TOP + height - size:.1f}" width="{bar:.1f}" height="{size:.1f}" '
                     f'fill="{COLOURS[row["implementation"]]}"><title>{row["tokens_per_second"]:,.0f} tokens/s, {row["ms_median"]:.2f} ms</title></rect>')
    for n, length in enumerate(lengths):
        parts.append(f'<text x="{LEFT + (n + 0.5) * group:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{length}</text>')
    for n, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<rect x="{LEFT + n * 90}" y="{HEIGHT - 14}" width="10" height="10" fill="{colour}"/>'
                     f'<text x="{LEFT + n * 90 + 14}" y="{HEIGHT - 5}">{name}</text>')
    return f'<svg width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">{"".join(parts)}</svg>'


def table(rows):
    lines = ["<tr><th>model<th>workload<th>length<th>implementation<th>tokens/s<th>ms (least to most)<th>memory of a step, GiB</tr>"]
    for row in rows:
        first = f"<tr><td>{row['model']}<td>{row['workload']}<td>{row['seqlen']}<td>{row['implementation']}"
        if "failed" in row:
            lines.append(f"{first}<td colspan=3>{escape(row['failed'])}</tr>")
            continue
        memory = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f}"
        lines.append(f"{first}<td>{row['tokens_per_second']:,.0f}<td>{row['ms_median']:.2f} ({row['ms_min']:.2f} to "
                     f"{row['ms_max']:.2f})<td>{memory}</tr>")
    return f"<table>{''.join(lines)}</table>"


def page(title, rows):
    cases = dict.fromkeys((row["model"], row["workload"]) for row in rows)
    charts = "".join(chart(" ".join(case), [row for row in rows if (row["model"], row["workload"]) == case]) for case in cases)
    return ('<!doctype html><meta charset="utf-8"><title>tilewise end to end</title><style>body{font-family:sans-serif}'
            f"td,th{{padding:2px 8px;text-align:right}}</style><h1>{escape(title)}</h1>{charts}{table(rows)}\n")
