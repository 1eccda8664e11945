"""The report of a profile: one HTML file with its plots in it, which needs nothing else to be shown."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyqd_spark.jobs.report import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

# Those with the most messages have plots; the table has all.
TOPICS_SHOWN: Final = 12
MINUTE: Final = timedelta(minutes=1)
# Told apart by people who do not see all colours, and in grey (Okabe and Ito).
RATE, MEDIAN, HIGH, LARGEST = "#0072b2", "#009e73", "#d55e00", "#999999"

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #5b6472; --line: #dfe3ea; --paper: #ffffff; --back: #f4f6f9; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaf0; --soft: #a0a8b6; --line: #343b49; --paper: #1b202a; --back: #12161d; }
  .plot { background: #ffffff; border-radius: 6px; }
}
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 0 0 8px; }
p { margin: 0 0 16px; color: var(--soft); }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; margin: 16px 0; }
section { padding: 16px 20px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 7px; font-size: 13.5px; text-align: right; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
.plot { width: 100%; height: auto; display: block; }
"""


def page(title: str, origin: str, rows: Sequence[Row]) -> str:
    """Return the report. origin: where the messages come from, in words. rows: as by_minute has them, one at least."""
    topics = by_topic(rows)
    first, last = min(row["minute"] for row in rows), max(row["minute"] for row in rows)
    messages = sum(row["messages"] for row in rows)
    total = sum(row["bytes"] for row in rows)
    head = (
        f"{messages:,} messages with {size(total)} of bodies in {len(topics)} topics, from {stamp(first)} to "
        f"{stamp(last + MINUTE)} UTC. Source: {origin}."
    )
    shown = list(topics)[:TOPICS_SHOWN]
    hidden = len(topics) - len(shown)
    parts = [
        f"<h1>{html.escape(title)}</h1><p>{html.escape(head)}</p>",
        f'<section class="wide">{summary(topics)}</section>',
        *(section(topic, topics[topic], first, last) for topic in shown),
    ]
    if hidden:
        parts.append(f"<p>{hidden} topics with fewer messages have no plots; the Parquet files have all of them.</p>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body><main>"
        + "\n".join(parts)
        + "</main></body></html>\n"
    )


def by_topic(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each topic in order of time, the topic with the most messages first."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["minute"]):
        found.setdefault(row["topic"], []).append(row)
    return dict(sorted(found.items(), key=lambda item: (-sum(row["messages"] for row in item[1]), item[0])))


HEADINGS: Final = (
    "topic",
    "messages",
    "bodies",
    "busiest minute",
    "mean /s",
    "highest /s",
    "median size",
    "p99 size",
    "largest",
    "deferred",
)


def summary(topics: Mapping[str, Sequence[Row]]) -> str:
    """Return the table of all topics. Sizes: of the minute in the middle for the median, of the highest for others."""
    lines = ["<table><thead><tr>" + "".join(f"<th>{heading}</th>" for heading in HEADINGS) + "</tr></thead><tbody>"]
    for topic, rows in topics.items():
        messages = sum(row["messages"] for row in rows)
        busiest = max(rows, key=lambda row: row["messages"])
        minutes = (rows[-1]["minute"] - rows[0]["minute"]) / MINUTE + 1
        cells = (
            topic,
            f"{messages:,}",
            size(sum(row["bytes"] for row in rows)),
            stamp(busiest["minute"]),
            number(messages / minutes / 60),
            number(busiest["rate"]),
            size(weighted_median(rows, "size_p50")),
            size(max(row["size_p99"] for row in rows)),
            size(max(row["size_max"] for row in rows)),
            f"{sum(row['deferred'] for row in rows):,}",
        )
        lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return "".join(lines) + "</tbody></table>"


def weighted_median(rows: Sequence[Row], column: str) -> float:
    """Return the value of the minute in which the middle message lies, minutes ordered by their value."""
    ordered = sorted(rows, key=lambda row: row[column])
    left = sum(row["messages"] for row in rows) / 2
    for row in ordered:
        left -= row["messages"]
        if left <= 0:
            break
    return float(row[column])


def section(topic: str, rows: Sequence[Row], first: datetime, last: datetime) -> str:
    """Return a topic's plots."""
    image = base64.b64encode(svg(figure(rows, first, last))).decode()
    name = html.escape(topic)
    return (
        f'<section><h2>{name}</h2><img class="plot" alt="Rate, sizes and times of topic {name}" '
        f'src="data:image/svg+xml;base64,{image}"></section>'
    )


def figure(rows: Sequence[Row], first: datetime, last: datetime) -> Figure:
    """Return the plots of a topic: rate, sizes, and times of deferred messages where there are some."""
    from matplotlib.figure import Figure

    timed = any(row["delay_ms_p50"] is not None or row["lateness_ms_p50"] is not None for row in rows)
    count = 3 if timed else 2
    made = Figure(figsize=(10.4, 2.5 * count), layout="constrained")
    axes = made.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    minutes = every_minute(rows)
    rates = {row["minute"]: row["rate"] for row in rows}
    times, heights = [days(minute) for minute in minutes], [rates.get(minute, 0.0) for minute in minutes]
    axes[0].fill_between(times, heights, step="post", color=RATE, alpha=0.25, linewidth=0)
    axes[0].step(times, heights, where="post", color=RATE, linewidth=1.4)
    axes[0].set_ylabel("messages per second")
    axes[0].set_ylim(bottom=0)
    lines(axes[1], rows, minutes, "size", 1.0)
    axes[1].set_ylabel("body size, bytes")
    axes[1].set_yscale("log")
    if timed:
        late = any(row["lateness_ms_p50"] is not None for row in rows)
        lines(axes[2], rows, minutes, "lateness_ms" if late else "delay_ms", 1e-3)
        axes[2].set_ylabel("late by, seconds" if late else "deferred by, seconds")
        if not late and all(row["delay_ms_p50"] is None or row["delay_ms_p50"] > 0 for row in rows):
            axes[2].set_yscale("log")
    made.align_ylabels(axes)
    for axis in axes:
        dress(axis)
    dates(axes[-1], first, last + MINUTE)
    return made


def days(moment: datetime) -> float:
    """Return a moment as matplotlib counts: in days since 1970."""
    return moment.timestamp() / 86_400


def every_minute(rows: Sequence[Row]) -> list[datetime]:
    """Return the minutes from the first to behind the last one, those without messages too."""
    first, last = rows[0]["minute"], rows[-1]["minute"]
    return [first + number * MINUTE for number in range(int((last - first) / MINUTE) + 2)]


def lines(axis: Axes, rows: Sequence[Row], minutes: Sequence[datetime], name: str, scale: float) -> None:
    """Draw median, 99th percentile and maximum; minutes without a value are left open."""
    for column, label, colour in (("max", "largest", LARGEST), ("p99", "p99", HIGH), ("p50", "median", MEDIAN)):
        found = {row["minute"]: row[f"{name}_{column}"] for row in rows}
        values = [found.get(minute) for minute in minutes[:-1]]
        # A minute's value holds up to its end.
        drawn = [float("nan") if value is None else value * scale for value in values]
        axis.step(
            [days(minute) for minute in minutes],
            [*drawn, drawn[-1]],
            where="post",
            color=colour,
            linewidth=1.4,
            label=label,
        )
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def dress(axis: Axes) -> None:
    """Take away what carries nothing, and write numbers out."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color("#b6bdc9")
    axis.grid(axis="y", color="#e6e9ef", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(colors="#5b6472", labelsize=9)
    axis.yaxis.label.set(color="#1d2433", fontsize=10)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.yaxis.set_minor_formatter(NullFormatter())


def dates(axis: Axes, first: datetime, last: datetime) -> None:
    """Give the axis of time the whole range of the report, so that topics can be compared."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    axis.set_xlim(days(first), days(last))
    locator = AutoDateLocator(minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def svg(drawn: Figure) -> bytes:
    """Return a figure as SVG, the same for the same figure."""
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "pyqd", "svg.fonttype": "path"}):
        drawn.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def stamp(moment: datetime) -> str:
    """Return a minute as people write it."""
    return f"{moment:%Y-%m-%d %H:%M}"


def number(value: float) -> str:
    """Return a number with as many digits as it takes to tell it from others like it."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
