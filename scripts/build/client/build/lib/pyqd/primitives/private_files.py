"""Files with secrets: replaced in one step, and readable by their owner only."""

import contextlib
import os
import tempfile
from pathlib import Path


def replace_private(path: Path, text: str) -> None:
    """Replace a file in one step, with mode 0600. No other user can read it, at no time. Raises: OSError.

    The new file belongs to the owner of the old one: root may change the file of another user's process.
    """
    # mkstemp gives mode 0600.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                found = path.stat()
                os.fchown(descriptor, found.st_uid, found.st_gid)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
