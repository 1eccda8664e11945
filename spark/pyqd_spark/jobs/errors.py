"""What goes wrong with a job and is told in one sentence, without a traceback."""


class JobError(Exception):
    """A job could not do what it was asked to. The text is for people and says what is wrong."""


class DataLossError(JobError):
    """Messages that should be in a table cannot be read any more. The text says which and why."""


class TableError(JobError):
    """A table that cannot be used: in use, of a later form, or its state is not what was written."""


class DrainError(JobError):
    """A run could not be finished. What has landed stays, the plan stays, and the next run carries it out."""
