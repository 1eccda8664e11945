"""Entry point of the web admin `pyqadmin`."""

import sys
from collections.abc import Sequence

from pyqd.primitives.program_start import begin_program


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run. Returns: the exit code."""
    begin_program("pyqadmin", holds_hangups=list(sys.argv[1:] if argv is None else argv)[:1] != ["user"])
    # After that: until all code is loaded, a SIGHUP would end the web admin.
    from gevent import monkey

    # The blocking calls of Flask and of the HTTP client become greenlets. Modules that were imported before may keep
    # the other kind, so the program's own are imported after this.
    monkey.patch_all()

    try:
        from pyqd.apps.web_admin import run_admin
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pyqd"):
            raise
        print(f"pyqadmin needs the package {error.name}: pip install 'pyqd[admin]'", file=sys.stderr)
        return 1
    return run_admin(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
