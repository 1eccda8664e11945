"""Errors of traces, each with a text for the operator: operation, database, cause, remedy."""

from __future__ import annotations


class TraceError(Exception):
    """Any error of pyqd.trace."""


class DatabaseError(TraceError):
    """The database cannot be used at present; the operation may be repeated."""


class SchemaError(TraceError):
    """The tables are missing, or not those of this version; repeating does not help."""


class UrlError(TraceError):
    """The URL of a database is wrong, or its driver is not installed."""


class MovedError(TraceError):
    """Another shipper has stored events of this broker. position: of the first event that is not stored yet."""

    def __init__(self, position: int) -> None:
        super().__init__(f"another shipper has stored the events up to position {position}")
        self.position = position
