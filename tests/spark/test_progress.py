"""Progress of Spark jobs without a terminal."""

import io
import re

from pyqd_spark.jobs.progress import JobProgress


def test_the_last_line_of_a_step_counts_earlier_work_but_excludes_it_from_the_rate() -> None:
    stream = io.StringIO()
    tallies = iter([(1, 600), (3, 1000)])
    with JobProgress(stream=stream).following("run 7", 3, 1000, lambda: next(tallies)):
        pass
    [line] = stream.getvalue().splitlines()
    found = re.fullmatch(r"run 7: 100%, 1,000 of 1,000 rows, ([0-9,]+) rows per second, 3 of 3 ranges", line)
    # 400 rows in a millisecond at least.
    assert found is not None
    assert int(found[1].replace(",", "")) <= 400_000


def test_a_quiet_job_and_a_step_of_nothing_write_nothing() -> None:
    stream = io.StringIO()
    quiet = JobProgress(quiet=True, stream=stream)
    with quiet.following("run 7", 3, 1000, lambda: (0, 0)):
        quiet.say("a message")
    with JobProgress(stream=stream).following("run 7", 0, 0, lambda: (0, 0)):
        pass
    assert stream.getvalue() == ""
