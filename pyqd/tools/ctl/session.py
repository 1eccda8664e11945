"""State of one run of pyqctl: flags, target, output, failures, and the question before a destructive command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click

from pyqd.client.errors import NotConnectedError, NotFoundError, SettingError
from pyqd.primitives.durations import SECOND_NS
from pyqd.tools.ctl.cluster import WITHOUT_TOKEN, Answer, Answers, Failure, N, T, TargetCluster, ask
from pyqd.tools.ctl.contexts import VARIABLES, ContextFile, CtlTarget, find_target
from pyqd.tools.ctl.exits import OK, code_of
from pyqd.tools.ctl.nodes import AskedBroker
from pyqd.tools.ctl.output import CommandOutput, say

FLAGS_KEY: Final = "pyqd.tools.ctl.flags"
TIMEOUT_NS: Final = 10 * SECOND_NS


class CtlSession:
    """One run. flags: values of the options that every command has, as given."""

    def __init__(self, flags: dict[str, Any]) -> None:
        self.flags = flags
        self.failures: list[Failure] = []
        self._cluster: TargetCluster | None = None
        self._told: set[str] = set()

    @property
    def context_file(self) -> ContextFile:
        return ContextFile.of(os.environ)

    @property
    def target(self) -> CtlTarget:
        """Settings in force. Raises: SettingError."""
        given: dict[str, Any] = {name: self.flags[name] for name in VARIABLES if name in self.flags}
        file = self.context_file
        found = find_target(given, self.flags.get("context"), os.environ, file)
        if found.context is not None and file.readable_by_others():
            say(f"other users can read the tokens in {file.path}: chmod 600 {file.path}")
        return found

    @property
    def uses_default_address(self) -> bool:
        """True if no flag, variable or context has named a broker."""
        return self._cluster is not None and self._cluster.target.is_default

    @property
    def timeout_s(self) -> float:
        return float(self.flags.get("timeout_ns", TIMEOUT_NS)) / SECOND_NS

    @property
    def output(self) -> CommandOutput:
        return CommandOutput(self.flags.get("as_json"))

    @property
    def cluster(self) -> TargetCluster:
        """Brokers and lookup daemons of the target. Raises: SettingError."""
        if self._cluster is None:
            self._cluster = TargetCluster(self.target, self.timeout_s)
        return self._cluster

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def brokers(self, *, may_be_none: bool = False) -> list[AskedBroker]:
        """Return all brokers. may_be_none: lookup daemons that name no broker are no failure. Raises: ClientError."""
        brokers = self.cluster.brokers()
        if not brokers and not may_be_none:
            raise NotConnectedError("no broker is known: the lookup daemons name none")
        self.failures += self.cluster.failures
        self.cluster.failures.clear()
        for address in self.cluster.strangers:
            if address not in self._told:
                self._told.add(address)
                say(WITHOUT_TOKEN % address)
        return brokers

    def only_broker(self, reason: str) -> AskedBroker:
        """Return the broker of a target that has one. Raises: SettingError, ClientError."""
        brokers = self.brokers()
        if len(brokers) != 1:
            named = ", ".join(broker.address for broker in brokers)
            raise SettingError(f"{reason}: choose one of {named} with --nsqd-http-address")
        return brokers[0]

    def ask(self, nodes: Iterable[N], call: Callable[[N], T]) -> list[Answer[N, T]]:
        """Return the answers of daemons, and note failures. Raises: ClientError if none has answered."""
        found = ask(nodes, call)
        return self.noted(found)

    def ask_holders(
        self, call: Callable[[AskedBroker], T], brokers: Sequence[AskedBroker] | None = None
    ) -> list[Answer[AskedBroker, T]]:
        """Return the answers of the brokers that have the topic, channel or message of a call.

        A broker without it is no failure, if another has it. Raises: ClientError if none has answered.
        """
        found = ask(self.brokers() if brokers is None else brokers, call)
        failures = [failure for failure in found.failures if not isinstance(failure.error, NotFoundError)]
        if not found.answers and not failures and found.failures:
            raise found.failures[0].error
        return self.noted(Answers(found.answers, failures))

    def noted(self, found: Answers[N, T]) -> list[Answer[N, T]]:
        """Return the answers, and note the failures. Raises: ClientError if there are only failures."""
        if not found.answers and found.failures:
            for failure in found.failures[1:]:
                say(str(failure.error))
            raise found.failures[0].error
        self.failures += found.failures
        return found.answers

    def finish(self) -> int:
        """Report the failures. Returns: the exit code."""
        for failure in self.failures:
            say(str(failure.error))
        return code_of(self.failures[0].error) if self.failures else OK

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before a destructive command. Raises: click.Abort for another answer than yes, SettingError if there is
        no terminal for the question.
        """
        if yes:
            return
        if sys.stdin is None or not sys.stdin.isatty():
            raise SettingError(f"{question} There is no terminal to answer at: add --yes")
        click.confirm(question, abort=True, err=True)
