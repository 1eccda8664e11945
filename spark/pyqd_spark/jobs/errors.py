"""What goes wrong with a job and is told in one sentence, without a traceback."""

import re
from typing import Final

# How the last line of a traceback begins, and a cause in one of Java's; both without what the class is called.
_RAISED: Final = re.compile(r"[\w.]+(?:Error|Exception): (?=\S)")
_CAUSE: Final = re.compile(r"Caused by: [\w.$]+: ")
_OF_SPARK: Final = ("pyspark", "py4j")


class JobError(Exception):
    """A job could not do what it was asked to. The text is for people and says what is wrong."""


class DataLossError(JobError):
    """Messages that should be in a table cannot be read any more. The text says which and why."""


class TableError(JobError):
    """A table that cannot be used: in use, of a later form, or its state is not what was written."""


class DrainError(JobError):
    """A run could not be finished. What has landed stays, the plan stays, and the next run carries it out."""


def reason_in(text: str) -> str:
    """Return what an error of Spark is about: the end of a traceback of Python within it, or the cause it names."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    raised = [match for line in lines if (match := _RAISED.match(line))]
    causes = [match for line in lines if (match := _CAUSE.match(line))]
    if raised:
        return raised[-1].string[raised[-1].end() :]
    if causes:
        return causes[0].string[causes[0].end() :]
    return lines[0].strip() if lines else "no reason given"


def spark_failure(error: BaseException) -> str | None:
    """Return in a sentence why Spark gave up; None for an error that is not one of Spark's."""
    if type(error).__module__.partition(".")[0] not in _OF_SPARK:
        return None
    reason = reason_in(str(error))
    if reason.startswith("No module named"):
        reason += ", which the Python of the executors needs"
    return f"Spark gave up: {reason}"
