"""Flags of pyq_to_file, and the checks that the command line must pass.

Source: docs/tools/pyq_to_file.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyqd.primitives.durations import MINUTE_NS, SECOND_NS
from pyqd.primitives.goflags import DURATION
from pyqd.primitives.loglines import LogLevel, parse_level
from pyqd.tools.common import (
    HTTP_TIMEOUTS,
    Fatal,
    HttpTimeoutFlags,
    Sources,
    ToolOptions,
    declare_flag,
    declare_repeated,
    require_one_kind,
    require_positive,
)
from pyqd.tools.to_file.encodings import Gzip, Lines, Zstd
from pyqd.tools.to_file.output import Limits

GZIP_LEVELS = (1, 9)
ZSTD_LEVELS = (1, 22)


@dataclass(frozen=True, kw_only=True)
class ToFileOptions(HttpTimeoutFlags, Sources, ToolOptions):
    """Flags of pyq_to_file."""

    log_level: str = declare_flag("info", "set log verbosity: debug, info, warn, error, or fatal")
    log_prefix: str = declare_flag("[pyq_to_file] ", "log message prefix")
    topic: tuple[str, ...] = declare_repeated("topic to write")
    topic_pattern: str = declare_flag("", "only write topics that match this regular expression")
    topic_refresh_ns: int = declare_flag(MINUTE_NS, "interval between two searches for topics", kind=DURATION)
    channel: str = declare_flag("nsq_to_file", "channel to consume")
    max_in_flight: int = declare_flag(200, "max number of messages to allow in flight, and to sync at a time")
    output_dir: str = declare_flag("/tmp", "directory to write output files to")
    work_dir: str = declare_flag("", "directory for in-progress files before moving to output-dir")
    datetime_format: str = declare_flag("%Y-%m-%d_%H", "strftime format for <DATETIME> in the file name")
    filename_format: str = declare_flag(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "file name (<TOPIC>, <HOST>, <PID>, <DATETIME>, <REV> are replaced; <REV> increases when a file exists)",
    )
    host_identifier: str = declare_flag(
        "", "value of <HOST> instead of the host name; <SHORT_HOST> and <HOSTNAME> are replaced"
    )
    gzip: bool = declare_flag(False, "gzip output files")
    gzip_level: int = declare_flag(6, "gzip compression level (1-9, 1=BestSpeed, 9=BestCompression)")
    zstd: bool = declare_flag(False, "compress output files with zstd")
    zstd_level: int = declare_flag(3, "zstd compression level (1-22)")
    parquet: bool = declare_flag(False, "write Parquet files instead of lines (needs pyqd[parquet])")
    skip_empty_files: bool = declare_flag(False, "skip writing empty files")
    rotate_size: int = declare_flag(0, "rotate the file when it grows bigger than so many bytes")
    rotate_interval_ns: int = declare_flag(0, "rotate the file every duration", kind=DURATION)
    sync_interval_ns: int = declare_flag(30 * SECOND_NS, "sync file to disk every duration", kind=DURATION)

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
        require_positive(self, *HTTP_TIMEOUTS, "max_in_flight", "sync_interval_ns", "topic_refresh_ns")
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
        return os.path.normpath(self.work_dir or self.output_dir)

    @property
    def final_dir(self) -> str:
        return os.path.normpath(self.output_dir)

    @property
    def keeps_revision(self) -> bool:
        is_limited = self.rotate_size > 0 or self.rotate_interval_ns > 0
        return self.gzip or self.zstd or self.parquet or is_limited or self.working_dir != self.final_dir

    def limits(self) -> Limits:
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
