"""Ratios of a series as horizontal bars on a logarithmic axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.report import Row, all_counting_rows
from bench.series import Series
from bench.tables import conditions

COLORS = ("#1f6f8b", "#99c2cf", "#d9a05b", "#8aa36f", "#7a6c9d")
MISSED = "#c0392b"
INK = "#22313a"
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
# Inches.
WIDTH = 10.0
ROW_HEIGHT = 0.52
MARGINS = 2.1


@dataclass(frozen=True)
class Bar:
    """Factor by which the first target is better; least and most over the pairs. goal: the wanted factor, if any."""

    factor: float
    least: float
    most: float
    goal: float | None
    reached: bool | None


def bars_of(row: Row) -> dict[str, Bar]:
    """Return the bars of a row by target. If less is better the ratio is inverted: more is always better."""
    found = {}
    for name, versus in row.versus.items():
        values = (versus.ratios.median, versus.ratios.least, versus.ratios.most)
        if min(values) <= 0:
            continue
        if row.figure.better == "less":
            median, most, least = (1 / value for value in values)
        else:
            median, least, most = values
        goal = versus.goal if versus.goal is None or row.figure.better == "more" else 1 / versus.goal
        found[name] = Bar(factor=median, least=least, most=most, goal=goal, reached=versus.reached)
    return found


def label_of(row: Row) -> str:
    what = row.figure.label.rpartition(",")[0]
    return row.workload.name if row.figure.key == "rate_per_s" else f"{row.workload.name}\n{what}"


def draw_bar(axes: Axes, place: float, height: float, bar: Bar, color: str) -> None:
    axes.barh(place, bar.factor - 1, left=1, height=height, color=color, zorder=2)
    axes.plot([bar.least, bar.most], [place, place], color=INK, linewidth=0.9, zorder=3)
    if bar.goal is not None:
        edge = INK if bar.reached else MISSED
        ends = [place - height / 2, place + height / 2]
        axes.plot([bar.goal] * 2, ends, color="white", linewidth=4.6, zorder=4)
        axes.plot([bar.goal] * 2, ends, color=edge, linewidth=2.6, zorder=4)
    end = max(bar.factor, bar.most, 1.0)
    color = MISSED if bar.reached is False else INK
    axes.annotate(
        f"{bar.factor:.2f}" if bar.factor < 10 else f"{bar.factor:.0f}",
        (max(end, bar.goal or 0), place),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=color,
    )


def draw_axis(axes: Axes, bars: Sequence[Bar]) -> None:
    values = [value for bar in bars for value in (bar.least, bar.most, bar.goal or 1.0)]
    least, most = min(0.9, *values) * 0.85, max(1.1, *values) * 1.45
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in TICKS if least <= tick <= most]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="x", color="#dde3e6", linewidth=0.8, zorder=0)
    axes.axvline(1, color=INK, linewidth=1.1, zorder=3)
    axes.tick_params(axis="both", length=0, colors=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#b8c2c7")


def draw_legend(axes: Axes, first: str, others: Sequence[str]) -> None:
    for name, color in zip(others, COLORS, strict=False):
        axes.barh(0, 0, color=color, label=f"{first} against {name}")
    axes.plot([], [], color=INK, linewidth=2.6, label="aim, reached")
    axes.plot([], [], color=MISSED, linewidth=2.6, label="aim, not reached")
    axes.plot([], [], color=INK, linewidth=0.9, label="range of the pairs")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, frameon=False, fontsize=8, borderaxespad=0.3)


def draw(series: Series, path: Path) -> bool:
    """Write the plot as PNG; return whether there is a ratio to draw."""
    first, *others = series.core_counts()
    drawn = [(row, bars) for row in all_counting_rows(series) if (bars := bars_of(row))]
    if not drawn:
        return False
    canvas = Canvas(figsize=(WIDTH, ROW_HEIGHT * len(drawn) + MARGINS), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    height = 0.78 / len(others)
    for index, (_, bars) in enumerate(drawn):
        for position, name in enumerate(others):
            if name in bars:
                place = index + (position - (len(others) - 1) / 2) * height
                draw_bar(axes, place, height * 0.92, bars[name], COLORS[position % len(COLORS)])
    draw_axis(axes, [bar for _, bars in drawn for bar in bars.values()])
    axes.set_yticks(range(len(drawn)), [label_of(row) for row, _ in drawn], fontsize=9)
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.set_xlabel(
        f"{first} is better by this factor: more messages, or less time, memory, CPU", color=INK, fontsize=9
    )
    draw_legend(axes, first, others)
    canvas.suptitle(f"{first} against {others[0]}", x=0.01, ha="left", fontsize=13, color=INK, fontweight="bold")
    canvas.text(0.01, -0.01, "\n".join(conditions(series)), fontsize=7, color="#5b6b73", va="top")
    canvas.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.2, facecolor="white")
    return True
