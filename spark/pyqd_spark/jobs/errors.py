"""Errors of jobs that are printed as one sentence, without a traceback."""

import re
from typing import Final

# Beginning of a traceback's last line, or of a cause in a Java traceback; both without the class name.
_RAISED: Final = re.compile(r"[\w.]+(?:Error|Exception): (?=\S)")
_CAUSE: Final = re.compile(r"Caused by: [\w.$]+: ")
_OF_SPARK: Final = ("pyspark", "py4j")


class JobError(Exception):
    """A job could not be done. The text is for people and gives the reason."""


class TableError(JobError):
    """A table that cannot be used: in use, of a later format, or with invalid state."""


class DrainError(JobError):
    """A run could not be finished. Landed files and the plan stay, and the next run carries the plan out."""


def reason_in(text: str) -> str:
    """Return the reason in an error of Spark: the end of a Python traceback within it, or the cause it names."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    raised = [match for line in lines if (match := _RAISED.match(line))]
    causes = [match for line in lines if (match := _CAUSE.match(line))]
    if raised:
        return raised[-1].string[raised[-1].end() :]
    if causes:
        return causes[0].string[causes[0].end() :]
    return lines[0].strip() if lines else "no reason given"


def spark_failure(error: BaseException) -> str | None:
    """Return in a sentence why Spark failed; None for an error that is not one of Spark's."""
    if type(error).__module__.partition(".")[0] not in _OF_SPARK:
        return None
    reason = reason_in(str(error))
    if reason.startswith("No module named"):
        reason += ", which the Python of the executors needs"
    return f"Spark gave up: {reason}"
