"""The figures that ``bench check`` compares: ``python -m bench.gauges NAME`` measures one gauge once and prints a JSON
object.

Side:    any.
Gauges:  each runs small forms of the cases of its name, checked as those are; one process measures one, so that
         revisions take turns.
Figures: ``value``, and whether more of it is better.  Rates are those of the cases; start-up has CPU seconds of all
         processes, too; memory is what a process of a job holds, in MiB.  ``root`` in the object is the folder whose
         flowlet was measured.
Absent:  p99 of the latency: its ratio differs by half from run to run, so it cannot tell 3 percent.  ``bench latency``
         measures it.
"""

import argparse
import json
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import flowlet
from bench import latency, programs, startup, transport, window_columns, windows
from bench.jobs import checked_work, columns, pairs, window_sum_columns, words
from bench.jobs.pipeline import Deployment
from flowlet.logs import configure_logging

# Sizes make a run about a second long; the rest of a run (processes, a proof) takes as long again.
NUM_WORDS: Final = 3_000_000
NUM_STATE_WORDS: Final = 1_000_000
NUM_PAIRS: Final = 2_000_000
NUM_ROWS: Final = 20_000_000
NUM_EVENTS: Final = 200_000
NUM_WINDOW_ROWS: Final = 4_000_000
NUM_WINDOW_JOBS: Final = 3
LATENCY_S: Final = 2.0
TRANSPORT_S: Final = 1.0
QUICK_DIVISOR: Final = 20
_WINDOW_KEYS: Final = 1_000
_MIB: Final = 1024 * 1024
_ONE: Final = Deployment(1)


@dataclass(frozen=True)
class Figure:
    """One value of one revision."""

    name: str
    value: float
    more_is_better: bool = True
    cpu_s: float = 0.0  # of this process, and of its descendants that have ended; 0: since the one before it


def gauge_words(divisor: int) -> Iterator[Figure]:
    """Count words: called functions, the built-in sum, columns; and what the TaskManagers hold at the end."""
    for form in ("called", "sum", "columns"):
        run = words.Job(form, num_words=NUM_WORDS // divisor, made_words=words.MADE_WORDS // divisor).run()
        yield Figure(f"words {form}", run.rate)
        yield Figure(f"words {form}, MiB held", max(run.details["rss_bytes_per_tm"]) / _MIB, more_is_better=False)


def gauge_programs(divisor: int) -> Iterator[Figure]:
    """Run users' programs, and their twins, on one TaskManager."""
    for program in programs.PROGRAMS:
        for form in programs.FORMS:
            work = programs.work_of(program, form, NUM_EVENTS // divisor)
            yield Figure(work.name, checked_work.run(work, _ONE).rate)


def gauge_windows(divisor: int) -> Iterator[Figure]:
    """Sum by key and window: a lambda per record, and columns; each with its twin."""
    for form in programs.FORMS:
        work = windows.work_of("reduce", form, _WINDOW_KEYS, NUM_EVENTS // divisor)
        yield Figure(work.name, checked_work.run(work, _ONE).rate)
        rows = window_sum_columns.Rows(_WINDOW_KEYS, NUM_WINDOW_ROWS // divisor, form == "twin")
        yield Figure(windows.name_of("columns", form, _WINDOW_KEYS), window_sum_columns.run(rows, _ONE).rate)


def gauge_columns(divisor: int) -> Iterator[Figure]:
    """Sum columns by key over TCP, as rows and as batches, and aggregate them in windows inside this process."""
    for form in columns.FORMS:
        job = columns.Job(form, num_rows=NUM_ROWS // divisor)
        yield Figure(job.name, job.run().rate)
    table = window_columns.WORKS[0].table(NUM_WINDOW_ROWS // divisor)
    window_columns.in_job(table)  # a process's first job imports modules for a quarter of a second: not the rows' part
    start_s = cpu_s()
    for _ in range(NUM_WINDOW_JOBS):
        window_columns.in_job(table)
    used_s = cpu_s() - start_s
    rate = NUM_WINDOW_JOBS * table.num_rows / used_s
    yield Figure("windows of columns in one process, rows per CPU second", rate, cpu_s=used_s)


def gauge_state(divisor: int) -> Iterator[Figure]:
    """Count words in a ``ValueState``: two spellings on the heap, and RocksDB."""
    for form, is_in_rocksdb in (("state", False), ("state-list", False), ("state", True)):
        num_words = NUM_STATE_WORDS // divisor
        job = words.Job(form, num_words=num_words, made_words=words.MADE_WORDS // divisor, is_in_rocksdb=is_in_rocksdb)
        yield Figure(job.name, job.run().rate)


def gauge_shuffle(divisor: int) -> Iterator[Figure]:
    """Sum tuples by key over TCP, with few int keys and with many texts."""
    for kind, form in (("int", "lambdas"), ("int", "sum"), ("str", "sum")):
        keys = pairs.KEYS[kind] if divisor == 1 else pairs.Keys(kind, 1_000, 10_000)
        job = pairs.Job(form, keys=keys, num_pairs=NUM_PAIRS // divisor)
        yield Figure(job.name, job.run().rate)


def gauge_latency(divisor: int) -> Iterator[Figure]:
    """Send 1,000 records per second from one TaskManager to the other."""
    sample = latency.measure(latency.Setting(0), LATENCY_S / 4 / divisor, LATENCY_S / divisor)
    yield Figure("latency, p50 us", sample["p50_us"], more_is_better=False)


def gauge_transport(divisor: int) -> Iterator[Figure]:
    """Send 32 KiB buffers: as a job does, and labelled ones over 100 channels."""
    for case in ("job-1", "threads-100"):
        yield Figure(
            f"transport {case}, GB/s", transport.measure(case, transport.CASES[case], TRANSPORT_S / divisor).gb_per_s
        )


def gauge_startup(_divisor: int) -> Iterator[Figure]:
    """Run the smallest program from start to end: CPU seconds of all its processes, wall seconds to
    its result, memory.
    """
    for name, parallelism in startup.CASES.items():
        startup.measure(parallelism)  # compiles modules, fills the caches of the file system
        start_s = cpu_s()
        seconds = startup.measure(parallelism)["seconds"]
        yield Figure(f"start-up {name}, CPU s", cpu_s() - start_s, more_is_better=False)
        yield Figure(f"start-up {name}, s", seconds, more_is_better=False)
        if parallelism == 1:
            peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of the largest descendant so far
            yield Figure(f"start-up {name}, MiB held", peak_kib / 1024, more_is_better=False)


def cpu_s() -> float:
    """Return the CPU seconds of this process, and of all descendants that have ended and were waited for."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def with_cpu_s(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Yield the figures, each with its own CPU seconds, or else with the CPU seconds since the previous one."""
    start_s = cpu_s()
    for figure in figures:
        end_s = cpu_s()
        yield figure if figure.cpu_s else replace(figure, cpu_s=end_s - start_s)
        start_s = end_s


GAUGES: Final[dict[str, Callable[[int], Iterator[Figure]]]] = {
    "words": gauge_words,
    "programs": gauge_programs,
    "windows": gauge_windows,
    "columns": gauge_columns,
    "state": gauge_state,
    "shuffle": gauge_shuffle,
    "latency": gauge_latency,
    "transport": gauge_transport,
    "startup": gauge_startup,
}


def main() -> int:
    """Measure one gauge."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gauges", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gauge", choices=GAUGES)
    parser.add_argument("--quick", action="store_true", help="short forms, only to see that they work")
    options = parser.parse_args()
    configure_logging("error")
    figures = [asdict(figure) for figure in with_cpu_s(GAUGES[options.gauge](QUICK_DIVISOR if options.quick else 1))]
    document: dict[str, Any] = {"root": str(Path(flowlet.__file__).resolve().parent.parent), "figures": figures}
    print(json.dumps(document), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
