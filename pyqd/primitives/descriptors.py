"""How many files and sockets the process may have open."""

import resource


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, as Go's runtime does for its programs. Returns: the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
