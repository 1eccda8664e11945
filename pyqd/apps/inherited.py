"""Listening sockets that another process has opened for this one: systemd, or the daemon that this one succeeds.

systemd passes descriptors from 3 on, and their number in LISTEN_FDS. A socket is recognised by its name in
LISTEN_FDNAMES, `tcp`, `http` or `https`, or by the port of the flag. Source: sd_listen_fds(3).

A daemon that restarts passes its sockets, the lock on the data directory, and a socket to talk over, in one variable:
pyqd/apps/restart.py.
"""

import dataclasses
import json
import os
import socket
from collections.abc import MutableMapping
from typing import Any

from pyqd.primitives.addresses import Address, UnixAddress
from pyqd.primitives.errors import StartupError

FIRST_FD = 3
HANDOVER_VARIABLE = "PYQD_HANDOVER"
NAMES = ("tcp", "http", "https")


@dataclasses.dataclass
class Inherited:
    """Sockets by listener. flags: the addresses that they were opened for, as the flags had them; empty: any.

    from_systemd: the sockets stay systemd's. lock_fd: descriptor with the lock on the data directory. predecessor:
    connection to the daemon that this one succeeds.
    """

    listeners: dict[str, socket.socket] = dataclasses.field(default_factory=dict)
    flags: dict[str, str] = dataclasses.field(default_factory=dict)
    from_systemd: bool = False
    lock_fd: int | None = None
    predecessor: socket.socket | None = None

    def take(self, name: str, address: Address) -> socket.socket | None:
        """Return the socket of a listener; None if it has to be opened, as there is none for that address.

        No client reaches a unix socket whose file was removed, so that such a socket is opened again.
        """
        found = self.listeners.pop(name, None)
        if found is None:
            return None
        is_removed = isinstance(address, UnixAddress) and not os.path.exists(address.path)
        if is_removed or self.flags.get(name, str(address)) != str(address):
            found.close()
            return None
        return found

    def close_unused(self) -> None:
        for each in self.listeners.values():
            each.close()
        self.listeners.clear()


def inherited_from(environ: MutableMapping[str, str], addresses: dict[str, Address]) -> Inherited:
    """Return the sockets that the environment names, and remove the names from it: no child may take them for its own.

    addresses: of the listeners, as the flags have them. Raises: StartupError for a socket that belongs to no listener.
    """
    handed_over = environ.pop(HANDOVER_VARIABLE, "")
    if handed_over:
        return handed_over_by(json.loads(handed_over))
    is_mine = environ.pop("LISTEN_PID", "") == str(os.getpid())
    count, names = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_FDNAMES", "")
    if not is_mine or not count.isdecimal() or int(count) == 0:
        return Inherited()
    named = names.split(":") if names else []
    found = Inherited(from_systemd=True)
    for index in range(int(count)):
        each = owned(FIRST_FD + index)
        name = named[index] if index < len(named) else ""
        if name not in addresses:
            name = listener_of(each, addresses)
        if name in found.listeners:
            raise StartupError(f"socket activation: two sockets for --{name}-address")
        found.listeners[name] = each
    return found


def handed_over_by(handover: dict[str, Any]) -> Inherited:
    """Return the sockets, flags and lock that a predecessor process has handed over. Raises: StartupError."""
    return Inherited(
        listeners={name: owned(fd) for name, (fd, _) in handover["listeners"].items()},
        flags={name: flag for name, (_, flag) in handover["listeners"].items()},
        from_systemd=handover["systemd"],
        lock_fd=handover["lock"],
        predecessor=owned(handover["control"]),
    )


def owned(fd: int) -> socket.socket:
    """Return an inherited socket, which no child inherits any more. Raises: StartupError if it is none."""
    try:
        found = socket.socket(fileno=fd)
    except OSError as error:
        raise StartupError(f"socket activation: descriptor {fd} is no socket - {error.strerror}") from error
    found.set_inheritable(False)
    return found


def listener_of(found: socket.socket, addresses: dict[str, Address]) -> str:
    """Return the name of the listener whose flag has the socket's path or port. Raises: StartupError."""
    bound = found.getsockname()
    for name, address in addresses.items():
        if isinstance(address, UnixAddress):
            if found.family == socket.AF_UNIX and bound == os.path.abspath(address.path):
                return name
        elif found.family != socket.AF_UNIX and bound[1] == address.port:
            return name
    shown = bound if isinstance(bound, str) else f"{bound[0]}:{bound[1]}"
    raise StartupError(
        f"socket activation: no listener for the socket {shown}; name it {', '.join(NAMES[:-1])} or {NAMES[-1]} with "
        "FileDescriptorName=, or give the flag its port"
    )
