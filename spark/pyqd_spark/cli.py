"""pyq_spark: jobs around topics and tables, as a command of their own or by spark-submit.

Exit codes: 0 done; 1 failed, with the reason on standard error; 2 wrong command line; 3 done, but messages are missing
or left for the next run, as the report says; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyqd.client.http import HTTPS_PORT
from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.durations import MILLISECOND_NS, parse_duration
from pyqd.primitives.errors import DiskFull, StorageError
from pyqd.primitives.nsq_compat import VERSIONS
from pyqd.primitives.program_start import begin_program
from pyqd_spark.brokers import BrokerError
from pyqd_spark.discovery import DataLossError
from pyqd_spark.java import JavaMissingError
from pyqd_spark.jobs.errors import JobError, spark_failure
from pyqd_spark.options import CONNECTION, BrokerOptions, OptionError, field_of, parse_flag, parse_options, text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyqd_spark.jobs.progress import JobProgress

DONE: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
INCOMPLETE: Final = 3
INTERRUPTED: Final = 130

PROGRAM: Final = "pyq_spark"


class Parser(CommandParser):
    """Parser of the whole command line; its help shows the help of all commands."""

    commands: Sequence[argparse.ArgumentParser] = ()

    def format_help(self) -> str:
        """Return the help of the program, and of each command."""
        return "\n".join([super().format_help(), *(command.format_help() for command in self.commands)])


class UsageError(Exception):
    """A mistake in the command line that argparse does not notice."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns: the exit code."""
    begin_program(PROGRAM)
    parsed = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO if parsed.verbose else logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        code: int = parsed.run(parsed)
        return code
    except (UsageError, OptionError) as error:
        return failed(str(error), MISUSED)
    except DataLossError as error:
        return failed(f"{error}. With --fail-on-data-loss=false the rest is taken and the report tells what is missing")
    except DiskFull as error:
        return failed(f"{error}. What has landed stays; make room and run the same command again")
    except (BrokerError, JobError, StorageError, JavaMissingError, ValueError) as error:
        return failed(str(error))
    except ModuleNotFoundError as error:
        return failed(f"{error.name} is missing: pip install 'pyqd[spark]'")
    except KeyboardInterrupt:
        return failed("interrupted; the same command goes on from here", INTERRUPTED)
    except Exception as error:
        why = spark_failure(error)
        if why is None:
            raise
        return failed(why)


def failed(text: str, code: int = FAILED) -> int:
    """Print the reason on standard error. Returns: the exit code."""
    print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)
    return code


def parser() -> argparse.ArgumentParser:
    top = Parser(PROGRAM, description="Spark jobs around pyqd's topics.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"{PROGRAM} {VERSIONS}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=CommandParser)
    add_drain(commands)
    add_compact(commands)
    add_replay(commands)
    add_profile(commands)
    add_lifecycle(commands)
    top.commands = list(commands.choices.values())
    return top


def add_command(commands: Any, name: str, help: str, run: Any) -> argparse.ArgumentParser:
    """Add a command with the flags that all commands share."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    command.set_defaults(run=run)
    general = command.add_argument_group("general")
    general.add_argument(
        "--master", metavar="URL", help="Spark's master (default: that of spark-submit, else local[*,4])"
    )
    general.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; may be repeated"
    )
    general.add_argument("--quiet", action="store_true", help="show no progress")
    general.add_argument("--verbose", action="store_true", help="log what is tried again, and why")
    return command


def add_connection(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("brokers")
    group.add_argument("--nsqd", action="append", metavar="HOST:PORT", help="HTTP address of a broker; may be repeated")
    group.add_argument("--lookupd", action="append", metavar="HOST:PORT", help="of a lookup daemon; may be repeated")
    group.add_argument("--token-file", metavar="FILE", help="file with the token for a broker's HTTP login")
    group.add_argument(
        "--trusted-broker",
        action="append",
        metavar="HOST",
        help="broker found by --lookupd that gets the token: host, host:port, *.domain or network; may be repeated",
    )
    group.add_argument("--tls", action="store_true", help="speak HTTPS")
    group.add_argument("--tls-root-ca-file", metavar="FILE", help="certificates to trust")
    group.add_argument("--tls-cert", metavar="FILE", help="our certificate, with --tls-key")
    group.add_argument("--tls-key", metavar="FILE", help="its key")
    group.add_argument("--tls-insecure-skip-verify", action="store_true", help="do not check the brokers' certificates")
    group.add_argument(
        "--https-port",
        metavar="N",
        default=str(HTTPS_PORT),
        help="with --tls, of brokers found by --lookupd (default: %(default)s)",
    )
    group.add_argument("--request-timeout", metavar="TIME", default="30s", help="of one request (default: %(default)s)")
    group.add_argument(
        "--retry-timeout", metavar="TIME", default="1m", help="how long a broker may be away (default: %(default)s)"
    )


def add_drain(commands: Any) -> None:
    command = add_command(commands, "drain", "Topics to Parquet by topic and day, each message once.", run_drain)
    add_connection(command)
    command.add_argument("--topic", action="append", metavar="NAME", help="a topic; may be repeated (default: all)")
    command.add_argument("--topics-pattern", metavar="REGEX", help="topics whose whole name matches")
    command.add_argument("--path", required=True, help="directory of the table")
    command.add_argument(
        "--start",
        default="earliest",
        metavar="PLACE",
        help="where topics begin that are new: earliest, latest, or a time such as 2026-11-21T04:15:00Z or -90m",
    )
    command.add_argument("--max-rows-per-file", type=count, default=1_000_000, metavar="N", help="default: %(default)s")
    add_compression(command)
    command.add_argument(
        "--fail-on-data-loss",
        type=flag,
        default=True,
        metavar="true|false",
        help="whether messages that cannot be read any more are an error (default: true)",
    )
    command.add_argument("--hold", metavar="CHANNEL", help="a channel that keeps messages until they have been drained")
    command.add_argument("--report", metavar="FILE", help="write the report there as JSON")


def add_compact(commands: Any) -> None:
    command = add_command(commands, "compact", "Merge the small files of a drained table.", run_compact)
    command.add_argument("--path", required=True, help="directory of the table")
    command.add_argument("--small-bytes", type=count, default=128 << 20, metavar="N", help="default: %(default)s")
    command.add_argument("--max-rows-per-file", type=count, default=4_000_000, metavar="N", help="default: %(default)s")
    add_compression(command)


def add_replay(commands: Any) -> None:
    command = add_command(commands, "replay", "Publish messages of a table again.", run_replay)
    add_connection(command)
    command.add_argument("--path", required=True, help="directory of the table")
    command.add_argument("--to", required=True, metavar="TOPIC", help="the topic that they are published to")
    command.add_argument("--where", metavar="SQL", help="which: an SQL expression over the table's columns")
    command.add_argument("--rate", type=count, metavar="N", help="messages per second at most, over all tasks")
    command.add_argument(
        "--tasks", type=count, metavar="N", help="publishers at the same time (default: as many as cores)"
    )
    command.add_argument("--dry-run", action="store_true", help="count them and publish nothing")


def add_profile(commands: Any) -> None:
    command = add_command(
        commands, "profile", "Counts, sizes and rates by topic and minute, with a report.", run_profile
    )
    add_connection(command)
    command.add_argument("--path", help="directory of a drained table; without it the topics themselves are read")
    command.add_argument("--topic", action="append", metavar="NAME", help="a topic; may be repeated")
    command.add_argument("--where", metavar="SQL", help="which messages: an SQL expression over the columns")
    command.add_argument("--received", metavar="COLUMN", help="a table's column with the time a consumer got a message")
    command.add_argument("--output", required=True, metavar="DIR", help="where the profile goes, which is replaced")
    command.add_argument("--title", default="Topics by minute", help="of the report (default: %(default)s)")


def add_lifecycle(commands: Any) -> None:
    command = add_command(
        commands, "lifecycle", "Trace logs to Parquet, one row for each message and channel.", run_lifecycle
    )
    add_connection(command)
    command.add_argument("--path", required=True, help="directory of the table")
    command.add_argument("--follow", action="store_true", help="go on until interrupted, one run after the other")
    command.add_argument("--interval", default="10s", metavar="TIME", help="between two runs (default: %(default)s)")
    command.add_argument("--report", metavar="FILE", help="write the report there as JSON")
    add_compression(command)


def add_compression(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--compression", choices=("zstd", "snappy", "gzip", "lz4", "none"), default="zstd", help="default: %(default)s"
    )


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def flag(text: str) -> bool:
    try:
        return parse_flag(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def connection_of(parsed: argparse.Namespace) -> BrokerOptions:
    """Return the connection that the flags describe. Raises: OptionError, UsageError."""
    values = {
        **vars(parsed),
        "token": token_of(parsed.token_file),
        "trusted_brokers": parsed.trusted_broker,
        "request_timeout_ms": milliseconds("--request-timeout", parsed.request_timeout),
        "retry_timeout_ms": milliseconds("--retry-timeout", parsed.retry_timeout),
    }
    given = {option.name: text_of(values[field_of(option)]) for option in CONNECTION}
    return BrokerOptions.of(PROGRAM, parse_options(PROGRAM, given, CONNECTION))


def token_of(path: str | None) -> str | None:
    """Return the token in a file; None without a path. Raises: UsageError."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise UsageError(f"--token-file {path}: {error.strerror}") from None


def milliseconds(name: str, text: str) -> str:
    """Return a duration such as 30s or 1m30s in milliseconds. Raises: UsageError."""
    try:
        return str(max(0, parse_duration(text)) // MILLISECOND_NS)
    except ValueError:
        raise UsageError(f"{name} {text!r}: expected a time such as 500ms, 30s or 1m30s") from None


def progress_of(parsed: argparse.Namespace) -> JobProgress:
    from pyqd_spark.jobs.progress import JobProgress

    return JobProgress(quiet=parsed.quiet)


def spark_of(parsed: argparse.Namespace) -> SparkSession:
    """Return the session for the command line. Raises: UsageError, JavaMissingError."""
    config: dict[str, object] = {}
    for setting in parsed.conf:
        name, found, value = setting.partition("=")
        if not found or not name:
            raise UsageError(f"--conf {setting!r}: expected NAME=VALUE")
        config[name] = value
    from pyqd_spark.session import session

    master = parsed.master
    # Spark then runs a task again if its worker dies, which plain local[*] does not do.
    if master is None and "spark.master" not in config and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*,4]"
    config.setdefault("spark.ui.showConsoleProgress", "false")
    return session(f"{PROGRAM} {parsed.command}", master=master, config=config)


def run_drain(parsed: argparse.Namespace) -> int:
    """Drain topics. Returns: the exit code."""
    from pyqd_spark.jobs.drain import DrainOptions, drain, start_ns, write_report
    from pyqd_spark.jobs.report import as_text
    from pyqd_spark.jobs.runner import OnSpark

    if parsed.topic and parsed.topics_pattern:
        raise UsageError("--topic and --topics-pattern exclude each other")
    options = DrainOptions(
        path=parsed.path,
        connection=connection_of(parsed),
        topics=tuple(dict.fromkeys(parsed.topic or ())),
        pattern=parsed.topics_pattern,
        start=parsed.start,
        rows_per_file=parsed.max_rows_per_file,
        compression=parsed.compression,
        fail_on_data_loss=parsed.fail_on_data_loss,
        hold=parsed.hold,
    )
    start_ns(options.start)
    with spark_of(parsed) as spark:
        reports = drain(options, OnSpark(spark, "drain"), progress_of(parsed))
    if parsed.report:
        write_report(reports, parsed.report)
    for report in reports:
        print(as_text(report), flush=True)
    return DONE if all(report.complete for report in reports) else INCOMPLETE


def run_compact(parsed: argparse.Namespace) -> int:
    """Compact a table. Returns: the exit code."""
    from pyqd_spark.jobs.compact import CompactOptions, as_text, compact
    from pyqd_spark.jobs.runner import OnSpark

    options = CompactOptions(parsed.path, parsed.small_bytes, parsed.max_rows_per_file, parsed.compression)
    with spark_of(parsed) as spark:
        report = compact(options, OnSpark(spark, "compact"), progress_of(parsed))
    print(as_text(report), flush=True)
    return DONE


def run_replay(parsed: argparse.Namespace) -> int:
    """Publish messages of a table again. Returns: the exit code."""
    from pyqd_spark.jobs.replay import ReplayOptions, as_text, replay

    options = ReplayOptions(
        path=parsed.path,
        topic=parsed.to,
        connection=connection_of(parsed),
        where=parsed.where,
        rate=parsed.rate,
        tasks=parsed.tasks,
        dry_run=parsed.dry_run,
    )
    with spark_of(parsed) as spark:
        report = replay(options, spark, progress_of(parsed))
    print(as_text(report), flush=True)
    return DONE


def run_profile(parsed: argparse.Namespace) -> int:
    """Profile topics. Returns: the exit code."""
    from pyqd_spark.jobs.profile import ProfileOptions, profile

    live = parsed.path is None
    options = ProfileOptions(
        output=parsed.output,
        path=parsed.path,
        connection=connection_of(parsed) if live else None,
        topics=tuple(parsed.topic or ()),
        where=parsed.where,
        received=parsed.received,
        title=parsed.title,
    )
    with spark_of(parsed) as spark:
        report = profile(options, spark, progress_of(parsed))
    print(report, flush=True)
    return DONE


def run_lifecycle(parsed: argparse.Namespace) -> int:
    """Bring a table of lives up to date. Returns: the exit code."""
    from pyqd_spark.jobs.lifecycle import LifecycleOptions, follow, update
    from pyqd_spark.jobs.lifecycle_report import as_text, report_of, run_text

    interval_s = int(milliseconds("--interval", parsed.interval)) / 1000
    options = LifecycleOptions(parsed.path, connection_of(parsed), parsed.compression)
    shown = progress_of(parsed)
    with spark_of(parsed) as spark:
        if parsed.follow:
            follow(options, spark, shown, interval_s, lambda run: print(run_text(run), flush=True))
        run = update(options, spark, shown)
        report = report_of(parsed.path, run, spark)
    if parsed.report:
        with open(parsed.report, "w", encoding="utf-8") as file:
            file.write(json.dumps(report, indent=1) + "\n")
    print(as_text(report), flush=True)
    return DONE if run.is_complete else INCOMPLETE


if __name__ == "__main__":
    sys.exit(main())
