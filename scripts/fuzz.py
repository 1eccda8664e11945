#!/usr/bin/env python3
"""Fuzz the TCP, HTTP and HTTPS ports of the daemon.

    scripts/fuzz.py --seconds=600 --seed=1               play cases for ten minutes; ends at the first finding
    scripts/fuzz.py --seed=1 --case=1234                 play one case, and print it
    scripts/fuzz.py --seed=1 --first=1200 --cases=50     play a batch again
    PYTHONPATH=build/debug-tree scripts/fuzz.py ...      the same on the debug build

The seed and a case's number decide what is sent, the system decides when. Exit code: 0 when the daemon stayed well, 1
when it did not; then the text says after which cases and shows the daemon's log. What is checked: the head of
tests/support/fuzz/campaign.py.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pyqd.primitives.command_line import CommandParser
from pyqd.primitives.progress import Progress
from tests.support.fuzz.campaign import Campaign, batches, make_case

LINE_S = 30.0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to play (default: 60)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="decides all cases (default: the time)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, help="play so many cases, however long it takes")
    parser.add_argument("--case", type=int, help="print and play one case")
    parser.add_argument("--batch", type=int, default=50, help="cases between two looks at the daemon (default: 50)")
    parser.add_argument("--server-flag", action="append", default=[], help="a further flag of the daemon")
    return parser.parse_args(argv)


def play(campaign: Campaign, arguments: argparse.Namespace) -> None:
    end_s = time.monotonic() + arguments.seconds
    if arguments.case is not None:
        print(make_case(arguments.seed, arguments.case).text(), flush=True)
        campaign.play([arguments.case])
        return
    report = campaign.report
    with Progress(total=arguments.cases, unit="cases", stream=sys.stdout, line_s=LINE_S) as progress:
        for numbers in batches(arguments.first, arguments.batch):
            campaign.play(numbers)
            if arguments.cases is not None:
                if report.cases >= arguments.cases:
                    return
            elif time.monotonic() > end_s:
                return
            note = f"{report.sent_bytes / 1e6:.1f} MB sent, slowest probe {report.slowest_probe_s:.2f} s"
            progress.move_to(report.cases, note)


def main(argv: list[str] | None = None) -> int:
    """Run. Returns: the exit code."""
    arguments = parse(argv)
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fuzz.") as directory:
        campaign = Campaign(Path(directory), arguments.seed, arguments.server_flag)
        try:
            campaign.start()
            play(campaign, arguments)
            campaign.stop()
        except AssertionError as error:
            print(f"{campaign.daemon.log_text()[-6000:]}\n{error}", file=sys.stderr)
            return 1
        finally:
            campaign.kill()
    print(campaign.report.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
