"""Flags of pyq_to_file, and the checks that the command line must pass.

Source: docs/tools/pyq_to_file.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyqd.primitives.durations import MINUTE_NS, SECOND_NS
from pyqd.primitives.goflags import BOOL, DURATION, INT, STRING, declare
from pyqd.primitives.loglines import LogLevel, parse_level
from pyqd.tools.common import Fatal, HttpTimeouts, Sources, ToolOptions, require_one_kind
from pyqd.tools.to_file.encodings import Gzip, Lines, Zstd
from pyqd.tools.to_file.output import Limits

GZIP_LEVELS = (1, 9)
ZSTD_LEVELS = (1, 22)


@dataclass(frozen=True, kw_only=True)
class Options(HttpTimeouts, Sources, ToolOptions):
    """Flags of pyq_to_file."""

    log_level: str = declare(
        "log-level", STRING, "info", "set log verbosity: debug, info, warn, error, or fatal", key=None
    )
    log_prefix: str = declare("log-prefix", STRING, "[pyq_to_file] ", "log message prefix", key=None)
    topic: tuple[str, ...] = declare(
        "topic", STRING, (), "topic to write (may be given multiple times)", key=None, repeatable=True
    )
    topic_pattern: str = declare(
        "topic-pattern", STRING, "", "only write topics that match this regular expression", key=None
    )
    topic_refresh_ns: int = declare(
        "topic-refresh", DURATION, MINUTE_NS, "interval between two searches for topics", key=None
    )
    channel: str = declare("channel", STRING, "nsq_to_file", "channel to consume", key=None)
    max_in_flight: int = declare(
        "max-in-flight", INT, 200, "max number of messages to allow in flight, and to sync at a time", key=None
    )
    output_dir: str = declare("output-dir", STRING, "/tmp", "directory to write output files to", key=None)
    work_dir: str = declare(
        "work-dir", STRING, "", "directory for in-progress files before moving to output-dir", key=None
    )
    datetime_format: str = declare(
        "datetime-format", STRING, "%Y-%m-%d_%H", "strftime format for <DATETIME> in the file name", key=None
    )
    filename_format: str = declare(
        "filename-format",
        STRING,
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "file name (<TOPIC>, <HOST>, <PID>, <DATETIME>, <REV> are replaced; <REV> increases when a file exists)",
        key=None,
    )
    host_identifier: str = declare(
        "host-identifier",
        STRING,
        "",
        "value of <HOST> instead of the host name; <SHORT_HOST> and <HOSTNAME> are replaced",
        key=None,
    )
    gzip: bool = declare("gzip", BOOL, False, "gzip output files", key=None)
    gzip_level: int = declare(
        "gzip-level", INT, 6, "gzip compression level (1-9, 1=BestSpeed, 9=BestCompression)", key=None
    )
    zstd: bool = declare("zstd", BOOL, False, "compress output files with zstd", key=None)
    zstd_level: int = declare("zstd-level", INT, 3, "zstd compression level (1-22)", key=None)
    parquet: bool = declare(
        "parquet", BOOL, False, "write Parquet files instead of lines (needs pyqd[parquet])", key=None
    )
    skip_empty_files: bool = declare("skip-empty-files", BOOL, False, "skip writing empty files", key=None)
    rotate_size: int = declare(
        "rotate-size", INT, 0, "rotate the file when it grows bigger than so many bytes", key=None
    )
    rotate_interval_ns: int = declare("rotate-interval", DURATION, 0, "rotate the file every duration", key=None)
    sync_interval_ns: int = declare(
        "sync-interval", DURATION, 30 * SECOND_NS, "sync file to disk every duration", key=None
    )

    def check(self) -> None:
        """Check all flags. Raises: Fatal."""
        self.level()
        if not self.channel:
            raise Fatal("--channel is required")
        if not self.nsqd_tcp_address and not self.lookupd_http_address:
            raise Fatal("--nsqd-tcp-address or --lookupd-http-address required.")
        require_one_kind(self.nsqd_tcp_address, self.lookupd_http_address)
        self._check_numbers()
        if self.gzip + self.zstd + self.parquet > 1:
            raise Fatal("use one of --gzip, --zstd and --parquet")
        if not self.topic and not self.topic_pattern:
            raise Fatal("--topic or --topic-pattern required")
        if not self.topic and not self.lookupd_http_address:
            raise Fatal("--lookupd-http-address must be specified when no --topic specified")
        # Before a message is taken: its package may be missing.
        self.encoding("")

    def _check_numbers(self) -> None:
        positive = {
            "http-client-connect-timeout": self.http_client_connect_timeout_ns,
            "http-client-request-timeout": self.http_client_request_timeout_ns,
            "max-in-flight": self.max_in_flight,
            "sync-interval": self.sync_interval_ns,
            "topic-refresh": self.topic_refresh_ns,
        }
        for name, value in positive.items():
            if value <= 0:
                raise Fatal(f"--{name} should be positive")
        for name, level, (least, most) in (
            ("gzip-level", self.gzip_level, GZIP_LEVELS),
            ("zstd-level", self.zstd_level, ZSTD_LEVELS),
        ):
            if not least <= level <= most:
                raise Fatal(f"invalid --{name} value ({level}), should be {least}-{most}")

    def level(self) -> LogLevel:
        """Return the log level. Raises: Fatal."""
        try:
            return parse_level(self.log_level)
        except ValueError:
            raise Fatal("--log-level is invalid") from None

    @property
    def working_dir(self) -> str:
        """Directory of the files that are written."""
        return os.path.normpath(self.work_dir or self.output_dir)

    @property
    def final_dir(self) -> str:
        """Directory of the finished files."""
        return os.path.normpath(self.output_dir)

    @property
    def keeps_revision(self) -> bool:
        """True if every file name has a revision."""
        is_limited = self.rotate_size > 0 or self.rotate_interval_ns > 0
        return self.gzip or self.zstd or self.parquet or is_limited or self.working_dir != self.final_dir

    def limits(self) -> Limits:
        """Return the limits of a file."""
        return Limits(max(0, self.rotate_size), max(0, self.rotate_interval_ns) / SECOND_NS)

    def encoding(self, topic: str) -> Lines:
        """Return the encoding of a topic's files. Raises: Fatal if its package is missing."""
        if self.gzip:
            return Gzip(self.gzip_level)
        if self.zstd:
            return Zstd(self.zstd_level)
        if not self.parquet:
            return Lines()
        try:
            from pyqd.tools.to_file.parquet import Parquet

            return Parquet(topic, self.channel)
        except ImportError:
            raise Fatal("--parquet needs a package: pip install 'pyqd[parquet]'") from None
