"""The cost of many channels on one connection: the transport with 1, 100 and 1,000 of them.

Side:   any.
Work:   that of ``bench/transport.py``, between task threads (``threads``): 32 KiB buffers over loopback TCP, checked
        one by one.
Figure: GB/s of each, and their ratio to one channel within each round.
"""

import argparse
from dataclasses import replace
from typing import Any, Final

from bench.jobs.pipeline import Run
from bench.load import ForeignLoad
from bench.report import Result
from bench.rounds import Contender, compare
from bench.transport import CREDITS_OF_ONE_CHANNEL, QUICK_SECONDS, SECONDS, cores, measure
from bench.transports.common import Setting

_ONE: Final = Setting("threads", num_credits=CREDITS_OF_ONE_CHANNEL)
CASES: Final = {
    1: _ONE,
    100: replace(_ONE, num_channels=100, num_credits=8),
    1000: replace(_ONE, num_channels=1000, num_credits=8),
}


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench channels", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of sending, per case and round")
    return vars(parser.parse_args(arguments))


def run(num_runs: int, *, quick: bool = False, seconds: float = SECONDS) -> list[Result]:
    """Measure all numbers of channels in turns."""
    return compare(
        [contender(number, QUICK_SECONDS if quick else seconds, is_quick=quick) for number in CASES], num_runs, "GB/s"
    )


def contender(num_channels: int, seconds: float, *, is_quick: bool) -> Contender:
    """Return the contender with one number of channels; the others are compared with the one that has one channel."""
    setting = replace(CASES[num_channels], cpus=cores(), compare_all=is_quick)

    def run_once() -> Run:
        with ForeignLoad() as load:
            sample = measure(f"threads-{num_channels}", setting, seconds)
        return Run(sample.gb_per_s, sample.seconds, load.cores, sample.as_dict())

    name = f"channels {num_channels:,}"
    return Contender(name, run_once, is_peer=num_channels == 1, details={"num_credits": setting.num_credits})
