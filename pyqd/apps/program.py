"""Frame of a daemon's `main`: check of its configuration, logging, limits of the process, and errors of the start."""

import logging
from collections.abc import Callable
from typing import TypeVar

from pyqd.apps.config_check import Checks, check_config
from pyqd.config.program_options import ProgramOptions
from pyqd.config.settings import ProgramSettings, version_line
from pyqd.primitives.errors import StartupError
from pyqd.primitives.loglines import configure, print_fatal
from pyqd.primitives.machine import raise_descriptor_limit

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=ProgramOptions)


def run_program(
    settings: ProgramSettings[T],
    checks: Checks[T],
    run: Callable[[T], int],
    on_refusal: Callable[[str], None] = lambda _reason: None,
) -> int:
    """Check the configuration if --check-config is given, else run(options). Returns: the exit code.

    run: its StartupError becomes a FATAL line. on_refusal: is called with the reason why the program cannot start.
    """
    if settings.values.get("check-config"):
        return check_config(settings, checks)
    try:
        options = settings.options()
        raise_descriptor_limit()
        configure(options.log_prefix, options.log_level, form=options.log_format)
        logger.info("%s", version_line(settings.program.name))
        for notice in options.notices:
            logger.warning("%s", notice)
        return run(options)
    except StartupError as error:
        print_fatal(str(error), f"[{settings.program.name}] ")
        on_refusal(str(error))
        return 1
