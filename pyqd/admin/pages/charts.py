"""Charts as SVG, made on the server: small ones for tables, and large ones with axes. They need no script."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup, escape

from pyqd.admin.history import STEP_S, greatest, since_first, thinned

SPARK_WIDTH: Final = 96
SPARK_HEIGHT: Final = 20
SPARK_POINTS: Final = 60
CHART_WIDTH: Final = 480
CHART_HEIGHT: Final = 150
MARGIN_LEFT: Final = 52
MARGIN_BOTTOM: Final = 18
MARGIN_TOP: Final = 8
ROUND_STEPS: Final = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10, 12)


def spark(values: Sequence[float], label: str) -> Markup:
    """Return a small line of values, oldest first. label: for readers that do not see it."""
    points = thinned(since_first(list(values)), SPARK_POINTS)
    top = greatest(points)
    if math.isnan(top):
        return Markup('<span class="spark empty"></span>')
    lines = polylines(points, 0, 1, SPARK_WIDTH, SPARK_HEIGHT - 2, top)
    attributes = f'viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" role="img" aria-label="{escape(label)}"'
    return Markup(f'<svg class="spark" {attributes}>{lines}</svg>')


def chart(
    values: Sequence[float], title: str, unit: str, now_s: float, links: Sequence[tuple[str, str]] = ()
) -> Markup:
    """Return a chart with axes of the last hour, or of less while there is less.

    unit: after each number. links: text and URL of pages with the same numbers.
    """
    values = since_first(list(values))
    top = nice_ceiling(greatest(values))
    width, height = CHART_WIDTH - MARGIN_LEFT, CHART_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM
    parts = []
    for step in range(5):
        y = MARGIN_TOP + height * step / 4
        text = f"{short(top * (4 - step) / 4)}{unit}"
        parts.append(f'<line class="grid" x1="{MARGIN_LEFT}" x2="{CHART_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{MARGIN_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(text)}</text>')
    span_s = len(values) * STEP_S
    for quarter in range(5):
        x = MARGIN_LEFT + width * quarter / 4
        # As all times of the pages: readers may be in another zone than the server.
        form = "%H:%M UTC" if quarter == 4 else "%H:%M"
        clock = time.strftime(form, time.gmtime(now_s - span_s * (4 - quarter) / 4))
        anchor = ("start", "middle", "middle", "middle", "end")[quarter]
        parts.append(f'<text x="{x:.1f}" y="{CHART_HEIGHT - 4}" text-anchor="{anchor}">{clock}</text>')
    parts.append(polylines(values, MARGIN_LEFT, MARGIN_TOP, width, height, top))
    data = ",".join("" if math.isnan(value) else f"{value:.6g}" for value in values)
    attributes = f'data-values="{data}" data-unit="{escape(unit)}" data-end="{now_s:.0f}" data-step="{STEP_S:g}"'
    label = f'role="img" aria-label="{escape(title)}"'
    places = "".join(f' <a href="{escape(url)}" rel="noreferrer">{escape(text)}</a>' for text, url in links)
    return Markup(
        f'<figure class="chart" {attributes}><figcaption>{escape(title)}{places}</figcaption>'
        f'<svg viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" {label}>{"".join(parts)}</svg></figure>'
    )


def polylines(values: Sequence[float], left: float, y0: float, width: float, height: float, top: float) -> str:
    """Return one SVG line for each run of values without a gap. top: the value at the upper edge."""
    runs: list[list[str]] = [[]]
    step = width / max(1, len(values) - 1)
    for number, value in enumerate(values):
        if math.isnan(value):
            if runs[-1]:
                runs.append([])
            continue
        y = y0 + height - (height * value / top if top > 0 else 0)
        runs[-1].append(f"{left + number * step:.1f},{y:.1f}")
    shapes = []
    for run in runs:
        if len(run) == 1:
            place_x, place_y = run[0].split(",")
            shapes.append(f'<circle cx="{place_x}" cy="{place_y}" r="1.5"/>')
        elif run:
            shapes.append(f'<polyline points="{" ".join(run)}"/>')
    return "".join(shapes)


def nice_ceiling(value: float) -> float:
    """Return the least round number that is not below a value, at least 4. Its quarters are round numbers too."""
    for small in (4.0, 8.0, 12.0):
        if math.isnan(value) or value <= small:
            return small
    power = 10.0 ** math.floor(math.log10(value))
    return float(next(round(step * power) for step in ROUND_STEPS if round(step * power) >= value))


def short(value: float) -> str:
    """Return a number in few characters: 950, 1.2k, 34M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
