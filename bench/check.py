"""Whether this checkout is slower than a revision: ``python -m bench check --against REVISION``.

Side:    any.
Way:     the revision is cloned beside this checkout, and both measure all gauges (``bench/gauges.py``) in turns, each
         in a process of its own; they take turns at beginning.  Ratios are taken within a pair, since the machine's
         pace changes from pair to pair.
Rule:    a figure is not slower if the median ratio of 9 pairs is at least 0.97.  Where it is below that, 25 pairs
         decide.
Bench:   a revision is measured with its own bench, since bench follows the product's modules; it gets today's modules
         that it lacks.
Beside:  ``--beside`` runs both at once and compares the CPU seconds of all their processes, starts included.  Other
         work of the machine then slows both alike.  A shared machine scatters rates in turns by a factor of two, and
         these seconds by a few percent.
Result:  one object per figure, its ratios as runs (above 1: better than the revision); exit code 1 if a figure is
         slower.
Absent:  a comparison with figures of a file: paces of two days differ by more than the differences to be found.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.gauges import GAUGES, Figure
from bench.options import choices
from bench.report import Result, git_revision
from bench.rounds import tell

NUM_PAIRS: Final = 9
NUM_DECIDING_PAIRS: Final = 25
MIN_CPU_S: Final = 0.3  # a value that took less, such as the memory at the end of a job, gets no figure of CPU s
MIN_RATIO: Final = 0.97
_ROOT: Final = Path(__file__).resolve().parent.parent
_TIMEOUT_S: Final = 900.0

# Measures a gauge once.
Gauge = Callable[[str], Sequence[Figure]]


class CheckError(Exception):
    """The revision does not exist, or a gauge failed; the message says which."""


@dataclass
class Comparison:
    """The ratios of one figure, one per pair; above 1: better than the revision."""

    name: str
    ratios: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.ratios)

    @property
    def is_slower(self) -> bool:
        """Whether the pairs so far say that it is slower."""
        return is_slower(self.ratios)

    def __str__(self) -> str:
        verdict = "  SLOWER" if self.is_slower else ""
        return (
            f"{self.median:6.3f} ({min(self.ratios):.3f}..{max(self.ratios):.3f}, {len(self.ratios)} pairs)  "
            f"{self.name}{verdict}"
        )


def is_slower(ratios: Sequence[float]) -> bool:
    """Whether the median of the ratios is below the allowed one."""
    return statistics.median(ratios) < MIN_RATIO


def ratio(now: Figure, before: Figure) -> float:
    """Return how much better ``now`` is: 1.1 is ten percent."""
    return now.value / before.value if now.more_is_better else before.value / now.value


def compare(
    gauges: Sequence[str],
    now: Gauge,
    before: Gauge,
    num_pairs: int,
    num_deciding_pairs: int,
    *,
    is_beside: bool = False,
) -> Iterator[Comparison]:
    """Measure pairs of each gauge; of a gauge with a slower figure further ones, until there are
    ``num_deciding_pairs``.
    """
    for gauge in gauges:
        found: dict[str, Comparison] = {}
        for number in range(max(num_pairs, num_deciding_pairs)):
            if number >= num_pairs and not any(comparison.is_slower for comparison in found.values()):
                break
            add_pair(found, *pair(gauge, now, before, number, is_beside=is_beside))
            tell(f"{gauge}, pair {number + 1}: {', '.join(f'{each.ratios[-1]:.3f}' for each in found.values())}")
        yield from found.values()


def pair(
    gauge: str, now: Gauge, before: Gauge, number: int, *, is_beside: bool = False
) -> tuple[Sequence[Figure], Sequence[Figure]]:
    """Return the figures of both; every second time this checkout begins, and the other one follows, or runs beside
    it.
    """
    with ThreadPoolExecutor(2 if is_beside else 1) as pool:
        if number % 2:
            ours, theirs = pool.submit(now, gauge), pool.submit(before, gauge)
        else:
            theirs, ours = pool.submit(before, gauge), pool.submit(now, gauge)
        return ours.result(), theirs.result()


def add_pair(found: dict[str, Comparison], now: Sequence[Figure], before: Sequence[Figure]) -> None:
    """Add a ratio for each figure that both have."""
    former = {figure.name: figure for figure in before}
    for figure in now:
        if figure.name in former:
            found.setdefault(figure.name, Comparison(figure.name)).ratios.append(ratio(figure, former[figure.name]))


def clone(revision: str, folder: Path, *, is_beside: bool = False) -> Path:
    """Clone the revision, and add today's modules of bench that it lacks, such as the gauges.

    ``is_beside``: with today's gauges in any case, since those of older revisions give no CPU seconds.

    Raises:
        CheckError: there is no such revision.
    """
    commit = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", cwd=_ROOT)
    if not commit:
        raise CheckError(f"--against: no revision {revision!r} in {_ROOT}")
    checkout = folder / "revision"
    _git("clone", "--quiet", "--shared", "--no-checkout", str(_ROOT), str(checkout), cwd=folder)
    _git("checkout", "--quiet", "--detach", commit, cwd=checkout)
    for module in (_ROOT / "bench").rglob("*.py"):
        copy = checkout / module.relative_to(_ROOT)
        if not copy.exists() or (is_beside and copy.name == "gauges.py"):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(module, copy)
    return checkout


def _git(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode and arguments[0] != "rev-parse":
        raise CheckError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def measure(checkout: Path, gauge: str, *, quick: bool = False, by_cpu: bool = False) -> list[Figure]:
    """Measure a gauge once in a checkout; ``by_cpu``: the CPU seconds of each figure, where they are at least
    ``MIN_CPU_S``.

    Raises:
        CheckError: it failed, or measured another flowlet than the checkout's.
    """
    command = [sys.executable, "-m", "bench.gauges", gauge, *(["--quick"] if quick else [])]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPATH"] = str(checkout)
    done = subprocess.run(
        command, cwd=checkout, env=variables, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise CheckError(f"gauge {gauge} failed in {checkout}:\n{done.stderr[-4000:]}")
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if Path(document["root"]) != checkout:
        raise CheckError(f"gauge {gauge} of {checkout} measured the flowlet of {document['root']}")
    figures = [Figure(**figure) for figure in document["figures"]]
    return of_cpu(figures) if by_cpu else figures


def of_cpu(figures: Sequence[Figure]) -> list[Figure]:
    """Return the CPU seconds of the figures that took any."""
    return [
        Figure(f"{each.name}: CPU s", each.cpu_s, more_is_better=False) for each in figures if each.cpu_s >= MIN_CPU_S
    ]


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Return the options of check alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--against", required=True, metavar="REVISION", help="a commit, tag or branch of this repository"
    )
    parser.add_argument("--only", type=choices(GAUGES), default=tuple(GAUGES), help="which gauges, separated by commas")
    parser.add_argument("--pairs", type=int, default=NUM_PAIRS, help="how many pairs")
    parser.add_argument(
        "--deciding-pairs", type=int, default=NUM_DECIDING_PAIRS, help="how many where a figure is slower"
    )
    parser.add_argument("--beside", action="store_true", help="both at the same time, by CPU seconds")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, *, quick: bool = False) -> Iterator[Result]:
    """Compare; one figure after the other.

    Raises:
        CheckError: see ``clone`` and ``measure``.
    """
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-check-") as name:
        checkout = clone(options.against, Path(name).resolve(), is_beside=options.beside)
        now, before = (partial(measure, side, quick=quick, by_cpu=options.beside) for side in (_ROOT, checkout))
        details: Mapping[str, Any] = {"against": options.against, "revision": git_revision()}
        for comparison in compare(
            options.only, now, before, options.pairs, options.deciding_pairs, is_beside=options.beside
        ):
            yield Result(f"check {comparison.name}", "x", comparison.ratios, dict(details), case="check")


def verdict(results: Sequence[Result]) -> str:
    """Return one line per figure, the worst first, and the number of slower figures."""
    comparisons = sorted(
        (Comparison(result.name, list(result.runs)) for result in results), key=lambda each: each.median
    )
    num_slower = sum(each.is_slower for each in comparisons)
    return "\n".join(
        [
            *map(str, comparisons),
            f"{num_slower} of {len(comparisons)} figures are slower (median ratio below {MIN_RATIO})",
        ]
    )
