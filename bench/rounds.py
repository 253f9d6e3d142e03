"""Several contenders in turns: a machine that becomes slower meanwhile favours nobody, and ratios are taken within one
round.

Side:  any.
Rules: contenders that get quicker with use are warmed up before the first round, until their rate stops rising.
"""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.jobs.pipeline import Run
from bench.report import Result
from bench.transport import orders

MAX_WARM_UPS: Final = 10
NUM_LEVEL: Final = 2  # level: this many runs in a row are not quicker than all before by more than STILL_RISING
STILL_RISING: Final = 1.03


@dataclass(frozen=True)
class Contender:
    """A program that does the work once and tells how quick it was.

    ``work``: the name of its work; contenders with equal names are compared.  ``warms_up``: whether a first run says
        little.
    """

    name: str
    run: Callable[[], Run]
    is_peer: bool = False
    warms_up: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def warm_up(contender: Contender) -> list[float]:
    """Run until the rate stops rising; the rates.  They are not counted."""
    rates: list[float] = []
    while len(rates) < MAX_WARM_UPS and is_rising(rates):
        rates.append(contender.run().rate)
        tell(f"{contender.name}: warming up, {rates[-1]:,.0f}/s")
    return rates


def is_rising(rates: Sequence[float]) -> bool:
    """Whether one of the last runs was clearly quicker than all before; one slow run proves nothing."""
    last, before = rates[-NUM_LEVEL:], rates[:-NUM_LEVEL]
    return not before or max(last) > STILL_RISING * max(before)


def run_rounds(contenders: Sequence[Contender], num_rounds: int) -> dict[str, list[Run]]:
    """Run every contender once per round, in another order each time."""
    by_name = {contender.name: contender for contender in contenders}
    runs: dict[str, list[Run]] = {name: [] for name in by_name}
    for order in orders(list(by_name), num_rounds):
        for name in order:
            run = by_name[name].run()
            runs[name].append(run)
            tell(f"{name}: {run.rate:,.5g}/s in {run.seconds:.2f} s, {run.foreign_cores:.2f} cores used by others")
    return runs


def compare(contenders: Sequence[Contender], num_rounds: int, unit: str) -> list[Result]:
    """Return one figure per contender, and one per pair of ours and a peer: the ratio of their rates."""
    warm_ups = {contender.name: warm_up(contender) for contender in contenders if contender.warms_up}
    runs = run_rounds(contenders, num_rounds)
    figures = [
        _figure(contender, runs[contender.name], unit, warm_ups.get(contender.name, [])) for contender in contenders
    ]
    return figures + ratios(contenders, runs)


def _figure(contender: Contender, runs: Sequence[Run], unit: str, warm_ups: list[float]) -> Result:
    details = contender.details | {"samples": [{"seconds": run.seconds, **run.details} for run in runs]}
    if contender.warms_up:
        details["warm_up_rates"] = warm_ups
    foreign = [run.foreign_cores for run in runs]
    return Result(
        contender.name,
        unit,
        [run.rate for run in runs],
        details,
        foreign,
        versions=contender.versions,
        is_peer=contender.is_peer,
    )


def ratios(contenders: Sequence[Contender], runs: Mapping[str, Sequence[Run]]) -> list[Result]:
    """Return the ratio of ours to each peer, round by round."""
    found = []
    for ours in contenders:
        for peer in contenders:
            if ours.is_peer or not peer.is_peer:
                continue
            pairs = list(zip(runs[ours.name], runs[peer.name], strict=True))
            foreign = [max(mine.foreign_cores, theirs.foreign_cores) for mine, theirs in pairs]
            rates = [mine.rate / theirs.rate for mine, theirs in pairs]
            found.append(Result(f"{ours.name} / {peer.name}", "x", rates, {}, foreign, versions=peer.versions))
            tell(f"{found[-1].name}: {statistics.median(rates):.2f} x ({min(rates):.2f}..{max(rates):.2f})")
    return found


def tell(line: str) -> None:
    """Print a line for the reader; standard output is for the objects."""
    print(line, file=sys.stderr, flush=True)
