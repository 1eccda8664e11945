"""The value of --e2e-processing-latency-percentile: fractions above 0 and up to 1.

On a command line they are separated by commas, may come in several flags, and are sorted from the highest; those of a
configuration file keep their order.
Source: docs/nsq/config.md, "nsqd".
"""

from typing import Any, Final

from pyqd.primitives.goflags import FlagType

Percentiles = tuple[float, ...]


def parse_percentiles(text: str) -> Percentiles:
    """Return the numbers of a list with commas, from the highest. Raises: ValueError."""
    return tuple(sorted(numbers_of(text), reverse=True))


def numbers_of(text: str) -> list[float]:
    """Return the numbers of a list with commas, in its order. Raises: ValueError."""
    try:
        return [float(part.strip()) for part in text.split(",")]
    except ValueError:
        raise ValueError("must be numbers with commas, such as 0.99,0.5") from None


def read_percentiles(found: Any) -> Percentiles:
    """Return the numbers of a configuration file, an array or a string with commas, in their order there.

    Raises: ValueError.
    """
    if isinstance(found, str):
        found = numbers_of(found) if found else []
    if not isinstance(found, list) or not all(type(item) in (int, float) for item in found):
        raise ValueError("must be an array of numbers, or a string with commas")
    return tuple(map(float, found))


def check_percentiles(percentiles: Percentiles) -> None:
    """Raise ValueError with nsqd's text for a number that is no percentile."""
    for percentile in percentiles:
        if not 0 < percentile <= 1:
            raise ValueError(f"invalid E2E processing latency percentile: {percentile:g}")


def show_percentiles(percentiles: Percentiles) -> str:
    """Return the list as the flag takes it."""
    return ",".join(f"{percentile:g}" for percentile in percentiles)


def joined_percentiles(former: Percentiles, more: Percentiles) -> Percentiles:
    """Return what two flags give together."""
    return tuple(sorted((*former, *more), reverse=True))


PERCENTILES: Final = FlagType(
    "value",
    parse_percentiles,
    show_percentiles,
    joined=joined_percentiles,
    check=check_percentiles,
    read=read_percentiles,
)
