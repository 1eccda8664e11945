"""Program of a test: prints what it was started with, reads its input, and ends with a code or by a signal."""

import json
import os
import signal
import sys

LOADED_BY = os.getpid()


def main() -> int:
    """Print one line of JSON, and the standard input on standard error. Returns: the first argument."""
    descriptors = sorted(os.listdir("/proc/self/fd"))
    facts = {
        "arguments": sys.argv[1:],
        "original": sys.orig_argv,
        "directory": os.getcwd(),
        "variables": dict(os.environ),
        "is_loaded_before": os.getpid() != LOADED_BY,
        # One is for the list itself.
        "descriptor_count": len(descriptors) - 1,
    }
    print(json.dumps(facts), flush=True)
    sys.stderr.write(sys.stdin.read())
    code = int(sys.argv[1])
    if code < 0:
        os.kill(os.getpid(), -code)
        signal.pause()
    return code


if __name__ == "__main__":
    sys.exit(main())
