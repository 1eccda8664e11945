"""docs/flags.md from the table of options."""

from collections.abc import Iterator
from pathlib import Path

from pyqd.config.options import FLAGS
from pyqd.primitives.goflags import Flag
from pyqd.primitives.nsq_compat import NSQ_VERSION

PAGE = Path(__file__).resolve().parents[2] / "docs" / "flags.md"
HEAD = """\
# Flags

<!-- Made by `make pages` from pyqd/config/options.py. -->

All flags of the daemon `pyqd`, as in `pyqd --help`. [Configuration](configuration.md) describes their syntax, and the
configuration file with the keys of the second column. Flags marked with * are pyqd's own, the others are nsqd's. pyqd
accepts every flag of nsqd {version}.
"""
COLUMNS = "| flag | key | value | default | range | meaning |\n| --- | --- | --- | --- | --- | --- |"

_NAMES = """
auth-http-address auth-http-request-method broadcast-address broadcast-http-port broadcast-tcp-port config data-path
deflate e2e-processing-latency-percentile e2e-processing-latency-window-time enable-experiment http-address
http-client-connect-timeout http-client-request-timeout https-address log-level log-prefix lookupd-tcp-address
max-body-size max-bytes-per-file max-channel-consumers max-deflate-level max-heartbeat-interval max-msg-size
max-msg-timeout max-output-buffer-size max-output-buffer-timeout max-rdy-count max-req-timeout mem-queue-size
min-output-buffer-timeout msg-timeout node-id output-buffer-timeout queue-scan-selection-count
queue-scan-worker-pool-max snappy statsd-address statsd-exclude-ephemeral statsd-interval statsd-mem-stats
statsd-prefix statsd-udp-packet-size sync-every sync-timeout tcp-address tls-cert tls-client-auth-policy tls-key
tls-min-version tls-required tls-root-ca-file topology-region topology-zone verbose version worker-id
"""
# The flags in nsqd's --help.
NSQD_FLAGS = frozenset(_NAMES.split())


def row(flag: Flag) -> str:
    """Return a flag's line of the table."""
    mark = "" if flag.name in NSQD_FLAGS else " *"
    kind = flag.type.usage_word or "bool"
    if flag.repeatable:
        kind = f"{kind}, may be repeated"
    default = flag.default_text or (f"`{flag.default_shown()}`" if flag.default_shown() else zero(flag))
    cells = [f"`--{flag.name}`{mark}", f"`{flag.config_key}`" if flag.config_key else "", kind, default]
    cells += [allowed(flag), flag.help]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("<", "\\<") for cell in cells) + " |"


def zero(flag: Flag) -> str:
    """Return how a default is shown that the usage text leaves out."""
    if flag.repeatable or flag.type.usage_word in ("string", "value"):
        return "empty"
    return f"`{flag.type.show(flag.default_value())}`"


def allowed(flag: Flag) -> str:
    """Return the range of a flag's values."""
    show = flag.type.show
    if flag.minimum is not None and flag.maximum is not None:
        return f"{show(flag.minimum)} to {show(flag.maximum)}"
    if flag.minimum is None:
        return ""
    if flag.type.usage_word == "duration" and flag.minimum == 1:
        return "above 0s"
    return f"from {show(flag.minimum)}"


def page() -> str:
    """Return the page."""
    lines = [HEAD.format(version=NSQ_VERSION)]
    for group in dict.fromkeys(flag.group for flag in FLAGS):
        lines += [f"## {group}\n", COLUMNS]
        lines += [row(flag) for flag in FLAGS if flag.group == group]
        lines.append("")
    return "\n".join(lines)


def files() -> Iterator[tuple[Path, str]]:
    """Yield the page with its text."""
    yield PAGE, page()
