"""Log of logins and changes: who did what, and from where. No log level hides its lines."""

from __future__ import annotations

import logging
from typing import Final

audit_logger: Final = logging.getLogger("pyqd.admin.audit")
# The level of the program is that of its other loggers: an operator who wants fewer lines still wants these.
audit_logger.setLevel(logging.INFO)
