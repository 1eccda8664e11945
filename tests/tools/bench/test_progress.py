"""Progress of pyq_bench: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from pyqd.tools.bench.run import LoadProgress


def test_elsewhere_there_is_a_line_for_each_second(capsys: pytest.CaptureFixture[str]) -> None:
    with LoadProgress("publishing", 0, 10.0, 200, quiet=False) as progress:
        progress.show(10, 0.5)
        progress.show(1_000_010, 1.5)
        progress.show(1_000_010, 2.5, "warming up")
    (first, second) = capsys.readouterr().err.splitlines()
    assert first.endswith("publishing: 2 s, 1,000,010 messages, 1,000,000 messages/s, 200.0 MB/s")
    assert second.endswith("warming up: 2 s, 1,000,010 messages, 0 messages/s, 0.0 MB/s")


def test_a_quiet_progress_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with LoadProgress("publishing", 0, 10.0, 200, quiet=True) as progress:
        progress.show(1000, 1.5)
    assert capsys.readouterr().err == ""


def read_until(terminal: int, text: str) -> str:
    """Return what a terminal shows, up to a text that must come."""
    shown = ""
    while text not in shown:
        shown += os.read(terminal, 65536).decode()
    return shown


def test_on_a_terminal_there_is_a_bar_which_is_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    main, secondary = pty.openpty()
    with os.fdopen(secondary, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with LoadProgress("publishing", 2000, 0.0, 200, quiet=False) as progress:
            progress.show(1000, 2.0)
            shown = read_until(main, "1,000 messages, 500 messages/s, 0.1 MB/s")
        # The line is erased.
        read_until(main, "\x1b[2K")
    os.close(main)
    assert "publishing" in shown
