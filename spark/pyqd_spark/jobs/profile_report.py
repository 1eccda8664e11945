"""Report of a profile: one self-contained HTML file with its plots."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyqd.primitives.quantities import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

TEMPLATE: Final = "profile.html"
# The topics with the most messages have plots; the table has all.
TOPICS_SHOWN: Final = 12
MINUTE: Final = timedelta(minutes=1)
# Colours that stay distinct for colour-blind people and in grey (Okabe and Ito).
RATE, MEDIAN, HIGH, LARGEST = "#0072b2", "#009e73", "#d55e00", "#999999"


def page(title: str, origin: str, rows: Sequence[Row]) -> str:
    """Return the report. origin: source of the messages, in words. rows: of by_minute, at least one."""
    # Imported here: a driver that has only the zip can run the other jobs without it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pyqd_spark.jobs"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": format_size, "stamp": stamp, "number": number}
    topics = by_topic(rows)
    first, last = min(row["minute"] for row in rows), max(row["minute"] for row in rows)
    shown = list(topics)[:TOPICS_SHOWN]
    return environment.get_template(TEMPLATE).render(
        title=title,
        origin=origin,
        message_count=sum(row["messages"] for row in rows),
        byte_count=sum(row["bytes"] for row in rows),
        first=first,
        end=last + MINUTE,
        topics=[summary(topic, found) for topic, found in topics.items()],
        plots=[(topic, base64.b64encode(svg(figure(topics[topic], first, last))).decode()) for topic in shown],
        hidden_count=len(topics) - len(shown),
    )


def by_topic(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each topic in order of time, the topic with the most messages first."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["minute"]):
        found.setdefault(row["topic"], []).append(row)
    return dict(sorted(found.items(), key=lambda item: (-sum(row["messages"] for row in item[1]), item[0])))


def summary(topic: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a topic's row of the table. Sizes: the median of the middle message's minute, else the highest of all
    minutes.
    """
    messages = sum(row["messages"] for row in rows)
    busiest = max(rows, key=lambda row: row["messages"])
    minutes = (rows[-1]["minute"] - rows[0]["minute"]) / MINUTE + 1
    return {
        "name": topic,
        "messages": messages,
        "bytes": sum(row["bytes"] for row in rows),
        "busiest": busiest["minute"],
        "mean_rate": messages / minutes / 60,
        "highest_rate": busiest["rate"],
        "median_size": weighted_median(rows, "size_p50"),
        "p99_size": max(row["size_p99"] for row in rows),
        "largest_size": max(row["size_max"] for row in rows),
        "deferred": sum(row["deferred"] for row in rows),
    }


def weighted_median(rows: Sequence[Row], column: str) -> float:
    """Return the value of the minute that contains the middle message, minutes ordered by their value."""
    ordered = sorted(rows, key=lambda row: row[column])
    left = sum(row["messages"] for row in rows) / 2
    for row in ordered:
        left -= row["messages"]
        if left <= 0:
            break
    return float(row[column])


def figure(rows: Sequence[Row], first: datetime, last: datetime) -> Figure:
    """Return the plots of a topic: rate, sizes, and times of deferred messages if there are any."""
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
    """Return a time in matplotlib's unit: days since 1970."""
    return moment.timestamp() / 86_400


def every_minute(rows: Sequence[Row]) -> list[datetime]:
    """Return all minutes from the first to one after the last, including those without messages."""
    first, last = rows[0]["minute"], rows[-1]["minute"]
    return [first + number * MINUTE for number in range(int((last - first) / MINUTE) + 2)]


def lines(axis: Axes, rows: Sequence[Row], minutes: Sequence[datetime], name: str, scale: float) -> None:
    """Draw median, 99th percentile and maximum; minutes without a value are gaps."""
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
    """Remove needless lines of an axis, and write numbers out."""
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
    """Give the time axis the whole range of the report, so that topics can be compared."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    axis.set_xlim(days(first), days(last))
    locator = AutoDateLocator(minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def svg(drawn: Figure) -> bytes:
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "pyqd", "svg.fonttype": "path"}):
        drawn.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def number(value: float) -> str:
    """Return a number with enough digits to distinguish it from similar ones."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
