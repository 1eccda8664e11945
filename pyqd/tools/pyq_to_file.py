"""pyq_to_file: writes the messages of topics to files, and finishes them when they are safe on the disk.

Source: docs/tools/pyq_to_file.md; docs/nsq/admin-and-tools.md, "nsq_to_file".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyqd.client.errors import ClientError
from pyqd.primitives import loglines
from pyqd.primitives.durations import SECOND_NS
from pyqd.tools.cluster import Http, TopicPattern, new_topics
from pyqd.tools.common import (
    EXIT_FATAL,
    EXIT_OK,
    Fatal,
    client_options,
    log_client,
    refuse_arguments,
    run_tool,
    stop_on,
)
from pyqd.tools.intake import consumer_of
from pyqd.tools.to_file.disk import FileStorageError, make_parent
from pyqd.tools.to_file.naming import FileNames, NameFormatError, host_of
from pyqd.tools.to_file.options import ToFileOptions
from pyqd.tools.to_file.output import FileOutput
from pyqd.tools.to_file.places import Places
from pyqd.tools.to_file.topic_log import Recorder, TopicLog

NAME: Final = "pyq_to_file"
SYNOPSIS: Final = """\
Write the messages of topics to files. A message is finished (FIN) when its file is synced to the disk (fsync).
Signals: SIGINT and SIGTERM sync and end; SIGHUP syncs and closes the files, and the next message opens others.
"""
# Threads that write and sync, for all topics.
THREAD_COUNT: Final = 16

logger = logging.getLogger("pyqd.tools.to_file")


class ToFile:
    """All topics of one process."""

    def __init__(self, options: ToFileOptions) -> None:
        self._options = options
        self._client_options = client_options(NAME, options.consumer_opt)
        self._pattern = TopicPattern(options.topic_pattern)
        self._host = host_of(options.host_identifier, socket.gethostname())
        self._executor = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix=NAME)
        self._logs: dict[asyncio.Task[None], TopicLog] = {}
        self._hang_ups: set[asyncio.Task[None]] = set()
        # Set when a task ends, and by a signal to stop.
        self._has_news = asyncio.Event()

    async def run(self) -> int:
        """Write messages until a signal, or a failure. Returns: the exit code. Raises: Fatal."""
        for directory in {self._options.working_dir, self._options.final_dir}:
            check_directory(directory)
        loop = asyncio.get_running_loop()
        with stop_on(signal.SIGINT, signal.SIGTERM, on_signal=self._has_news.set) as stopped:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
            for topic in self._options.topic:
                if self._pattern.matches(topic):
                    self._add(topic)
                else:
                    pattern = self._options.topic_pattern
                    logger.warning("skipping topic %s (doesn't match pattern %s)", topic, pattern)
            async with self._discovering() as discovery:
                while not stopped.is_set():
                    self._has_news.clear()
                    if not self._reap():
                        await self._stop()
                        return EXIT_FATAL
                    if not self._logs and self._options.topic:
                        raise Fatal("no topic is left to write")
                    if discovery is not None and discovery.done():
                        await self._stop()
                        # It ends by an error only.
                        discovery.result()
                    await self._has_news.wait()
            return await self._stop()

    @contextlib.asynccontextmanager
    async def _discovering(self) -> AsyncIterator[asyncio.Task[None] | None]:
        """Add topics that match the pattern in a task, if no topic is given by name."""
        if self._options.topic:
            yield None
            return
        task = asyncio.create_task(self._discover())
        task.add_done_callback(lambda _: self._has_news.set())
        try:
            yield task
        finally:
            task.cancel()

    async def _discover(self) -> None:
        options = self._options
        http = Http.of(options, self._client_options.consumer_keywords().get("lookupd_token"))
        refresh_s = options.topic_refresh_ns / SECOND_NS
        async for topic in new_topics(http, options.lookupd_http_address, [self._pattern], refresh_s):
            self._add(topic)

    def _add(self, topic: str) -> None:
        try:
            log = self._log_of(topic)
        except (NameFormatError, ClientError) as error:
            logger.error("couldn't create logger for new topic %s: %s", topic, error)
            return
        task = asyncio.create_task(log.run(), name=topic)
        task.add_done_callback(lambda _: self._has_news.set())
        self._logs[task] = log

    def _log_of(self, topic: str) -> TopicLog:
        options = self._options
        encoding = options.encoding(topic)
        names = FileNames.of(
            options.filename_format,
            options.datetime_format,
            encoding.suffix,
            topic,
            self._host,
            keeps_revision=options.keeps_revision,
        )
        subject = f"[{topic}/{options.channel}]"
        places = Places(names, encoding, options.final_dir, options.working_dir, subject)
        recorder = Recorder(FileOutput(places, options.limits()), subject, skips_empty_files=options.skip_empty_files)
        consumer = consumer_of(options, self._client_options, topic, options.channel, options.max_in_flight)
        return TopicLog(consumer, recorder, self._executor, places.recover, options.sync_interval_ns / SECOND_NS)

    def _reap(self) -> bool:
        """Forget the topics whose tasks have ended, and log why. Returns: whether the disk is fine."""
        is_fine = True
        for task in [task for task in self._logs if task.done()]:
            del self._logs[task]
            subject = f"[{task.get_name()}/{self._options.channel}]"
            error = task.exception()
            if isinstance(error, FileStorageError):
                logger.critical("%s %s; its messages are not finished", subject, error)
                is_fine = False
            elif isinstance(error, ClientError):
                logger.error("%s %s", subject, error)
            elif error is not None:
                raise error
        return is_fine

    def _hang_up(self) -> None:
        for log in self._logs.values():
            task = asyncio.create_task(log.hang_up())
            self._hang_ups.add(task)
            task.add_done_callback(self._hang_ups.discard)

    async def _stop(self) -> int:
        """Stop all consumers, make their messages safe, and end. Returns: the exit code."""
        for log in self._logs.values():
            log.stop()
        if self._logs:
            await asyncio.wait(self._logs)
        return EXIT_OK if self._reap() else EXIT_FATAL


def check_directory(path: str) -> None:
    """Check that files can be created in a directory, before a message is taken. Raises: Fatal."""
    try:
        make_parent(os.path.join(path, "file"))
    except FileStorageError as error:
        raise Fatal(str(error)) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise Fatal(f"cannot create files in directory {path}: no permission, or the file system is read-only")


async def run(options: ToFileOptions) -> int:
    """Run the tool. Returns: the exit code. Raises: Fatal."""
    options.check()
    loglines.configure(options.log_prefix, options.level())
    log_client(options.level() * 10)
    return await ToFile(options).run()


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(NAME, ToFileOptions, argv, run, SYNOPSIS, on_arguments=refuse_arguments)


if __name__ == "__main__":
    sys.exit(main())
