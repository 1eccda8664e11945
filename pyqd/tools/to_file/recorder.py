"""Messages of one topic on their way through its output files: a message is safe when its file is synced."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyqd.client.message import Message
from pyqd.tools.to_file.output import FileOutput

logger = logging.getLogger("pyqd.tools.to_file")


class Recorder:
    """Messages that are in the output and not safe yet. skips_empty_files: open no file without a message for it.

    Each method returns the messages that it made safe, and raises FileStorageError, after which none is. They block,
    and one thread calls them at a time.
    """

    def __init__(self, output: FileOutput, subject: str, *, skips_empty_files: bool) -> None:
        self._output = output
        self._subject = subject
        self._skips_empty_files = skips_empty_files
        # Messages that are not safe.
        self.held: list[Message] = []

    def record(self, messages: Sequence[Message], is_flush_due: bool) -> list[Message]:
        """Write messages. is_flush_due: make all safe. The first messages of a file are made safe in any case."""
        safe: list[Message] = []
        while messages:
            if self._output.needs_rotation():
                safe += self.flush()
                self._output.rotate()
                is_flush_due = True
            count = self._output.write(messages)
            self.held += messages[:count]
            messages = messages[count:]
        return safe + self.flush() if is_flush_due else safe

    def tick(self) -> list[Message]:
        """Make all messages safe, and rotate if a limit of the file is over."""
        safe = self.flush()
        if self._output.needs_rotation():
            if self._skips_empty_files:
                self._output.close()
            else:
                self._output.rotate()
        return safe

    def close(self) -> list[Message]:
        """Make all messages safe, and close the file. The next message opens another one."""
        safe = self.flush()
        self._output.close()
        return safe

    def flush(self) -> list[Message]:
        if not self.held:
            return []
        logger.info("%s syncing %d records to disk", self._subject, len(self.held))
        self._output.flush()
        safe, self.held = self.held, []
        return safe
