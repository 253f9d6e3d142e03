"""The gain of each fast path: ``python -m bench.fast_paths`` measures with it and without it, and writes a table.

Side:    any.
Way:     this checkout is cloned, the path is switched off in the clone by replacing a few words of the product, and
         both run one gauge (``bench/gauges.py``) at once.  CPU seconds of all their processes are compared, as
         ``bench check --beside`` does.
Figure:  CPU seconds without the path, divided by those with it: 1.10 says that it saves a tenth.  For the latency the
         microseconds themselves, in turns.
Rule:    a path that wins less than a tenth on a row that users live in goes.
Page:    ``--page`` writes the rows between the marks in ``docs/maintainers/fast-paths.md``.
Test:    ``tests/bench/test_fast_paths.py`` checks that each text that is replaced stands in its module once.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.check import CheckError, Comparison, clone, compare, measure
from bench.report import Result

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "maintainers" / "fast-paths.md"
NUM_PAIRS: Final = 3
_BEGIN: Final = "<!-- rows: python -m bench.fast_paths --page -->\n"
_END: Final = "<!-- end of the rows -->"


@dataclass(frozen=True)
class Edit:
    """A text of a module, and what stands there without the path."""

    module: str
    text: str
    without: str


@dataclass(frozen=True)
class FastPath:
    """One path.

    ``modules``: exist for it alone or mostly.  ``figure``: is in the names of the gauge's figures that count; the worst
    of them is reported.  ``by_cpu``: False: the figure itself is compared, and both sides run in turns.
    """

    name: str
    modules: tuple[str, ...]
    edits: tuple[Edit, ...]
    gauge: str
    figure: str
    by_cpu: bool = True

    @property
    def num_lines(self) -> int:
        """The number of lines of its modules."""
        return sum(len((ROOT / module).read_text().splitlines()) for module in self.modules)


FAST_PATHS: Final = (
    FastPath(
        "records of one shape are gathered by field, tested in the loop",
        ("flowlet/chain/record_shape.py",),
        (Edit("flowlet/chain/chunking_output.py", "== 1 and self._watch.num_others >= MIN_OTHERS:", "== 0:"),),
        "shuffle",
        "lambdas",
    ),
    FastPath(
        "a record that nothing else refers to is not copied",
        (),
        (Edit("flowlet/chain/record_shape.py", "    parts = _parts_to_own(record)\n", "    parts = None\n"),),
        "programs",
        "json_dicts, twin",
    ),
    FastPath(
        "tuples of numbers become columns by way of marshal",
        ("flowlet/columns/number_tuples.py",),
        (Edit("flowlet/columns/table.py", "if len(values) >= _MIN_NUMBER_TUPLES:", "if False:"),),
        "shuffle",
        "(int, int), 1,000 keys, lambdas",
    ),
    FastPath(
        "short texts are numbers of 16 bytes",
        ("flowlet/columns/short_text_column.py",),
        (
            Edit("flowlet/io/create_record_writer.py", "short = try_short_texts(keys)", "short = None"),
            Edit("flowlet/keys/key_index.py", "short = try_short_texts(values)", "short = None"),
        ),
        "shuffle",
        "(str, int)",
    ),
    FastPath(
        "text keys that come again travel as codes",
        ("flowlet/io/key_dictionary.py",),
        (
            Edit(
                "flowlet/io/create_record_writer.py",
                "if len(keys) > MAX_CHUNK_KEYS or self.bypass.is_taken():",
                "if True:",
            ),
        ),
        "words",
        "words sum",
    ),
    FastPath(
        "integers that lie close together are looked up in a table",
        (),
        (
            Edit(
                "flowlet/keys/key_index.py",
                "places = self._window.places(keys, self._find) if len(keys) else None",
                "places = None",
            ),
        ),
        "columns",
        "columns",
    ),
    FastPath(
        "a consumer in the same process gets the chunk itself",
        ("flowlet/io/chunk_content.py",),
        (
            Edit(
                "flowlet/io/record_writer.py",
                "takes_contents = self._partition.takes_contents(lane)",
                "takes_contents = False",
            ),
        ),
        "words",
        "words called",
    ),
    FastPath(
        "sums by key in arrays",
        ("flowlet/kernels/columnar_reduction.py", "flowlet/kernels/grouping.py"),
        (
            Edit(
                "flowlet/operators/keyed_aggregation_operator.py",
                "columnar = ColumnarReduction(reduce_function) if isinstance(reduce_function, Aggregation) else None",
                "columnar = None",
            ),
        ),
        "shuffle",
        "(int, int), 1,000 keys, sum",
    ),
    FastPath(
        "windows that are aligned keep their contents by start",
        ("flowlet/windows/aligned_windows.py",),
        (Edit("flowlet/windows/window_operator.py", "if spec.is_aligned else None", "if False else None"),),
        "windows",
        "windows reduce",
    ),
    FastPath(
        "a task's thread writes a small frame to the socket itself",
        ("netstack/transport/direct_writer.py",),
        (
            Edit(
                "netstack/transport/direct_writer.py",
                "if get_ident() in self.barred_threads or not",
                "if get_ident() or not",
            ),
        ),
        "latency",
        "latency",
        by_cpu=False,
    ),
    FastPath(
        "a light task runs on the loop's thread",
        (),
        (Edit("flowlet/task/one_input_stream_task.py", "return num_gates == 1 and", "return False and"),),
        "latency",
        "latency",
        by_cpu=False,
    ),
    FastPath(
        "all buffers of the only channel that has data are taken at once",
        (),
        (Edit("netstack/gate/single_input_gate.py", "if len(channels) == 1:", "if False:"),),
        "transport",
        "transport job-1",
    ),
    FastPath(
        "methods of dataclasses are made when they are first called",
        ("netstack/late.py",),
        (
            Edit(
                "netstack/late.py",
                "return (lambda each: _with_fields(each, parameters)) if cls is None",
                "return dataclasses.dataclass(cls, **parameters) if True",
            ),
        ),
        "startup",
        "start-up one process",
    ),
)


def edited(checkout: Path, path: FastPath) -> Path:
    """Return the checkout without the path.

    Raises:
        CheckError: a text does not stand in its module once.
    """
    for edit in path.edits:
        module = checkout / edit.module
        before, *rest = module.read_text().split(edit.text)
        if len(rest) != 1:
            raise CheckError(f"{edit.module} has {edit.text!r} {len(rest)} times: mend {path.name!r}")
        module.write_text(before + edit.without + rest[0])
    return checkout


def compared(path: FastPath, num_pairs: int, *, quick: bool = False) -> list[Comparison]:
    """Return how much better each figure of the path's gauge is with the path."""
    with tempfile.TemporaryDirectory(prefix="flowlet-fast-path-") as name:
        folder = Path(name).resolve()
        without = edited(clone("HEAD", folder, is_beside=True), path)
        with_it, without_it = (partial(measure, side, quick=quick, by_cpu=path.by_cpu) for side in (ROOT, without))
        found = compare([path.gauge], with_it, without_it, num_pairs, num_pairs, is_beside=path.by_cpu)
        figures = [each for each in found if path.figure in each.name]
    if not figures:
        raise CheckError(f"gauge {path.gauge} has no figure {path.figure!r}: mend {path.name!r}")
    return figures


def results_of(paths: Sequence[FastPath], num_pairs: int, *, quick: bool = False) -> Iterator[tuple[FastPath, Result]]:
    """Measure one path after the other; yield the worst figure of each."""
    for path in paths:
        worst = min(compared(path, num_pairs, quick=quick), key=lambda each: each.median)
        yield path, Result(f"fast path: {path.name}", "x", worst.ratios, {"figure": worst.name})


def row_of(path: FastPath, result: Result) -> str:
    """Return the row of the page."""
    modules = "<br>".join(f"`{module}`" for module in path.modules) or "<br>".join(
        f"in `{module}`" for module in dict.fromkeys(edit.module for edit in path.edits)
    )
    spread = f"{statistics.median(result.runs):.2f} ({min(result.runs):.2f} to {max(result.runs):.2f})"
    return f"| {path.name} | {modules} | {path.num_lines or 'a few'} | `{path.gauge}`: {path.figure} | {spread} |"


def write_page(rows: Sequence[str]) -> None:
    """Replace the rows that have the name of a new one; add the other new rows at the end."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    former, _, after = rest.partition(_END)
    by_name = {row.split("|")[1]: row for row in [*former.splitlines(), *rows] if row}
    table = "".join(f"{row}\n" for row in by_name.values())
    PAGE.write_text(f"{before}{_BEGIN}{table}{_END}{after}")


def main() -> None:
    """Measure, tell, and write the page if that is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fast_paths", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="paths whose name contains this")
    parser.add_argument("--pairs", type=int, default=NUM_PAIRS, help="how many pairs")
    parser.add_argument("--page", action="store_true", help=f"write the rows into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--quick", action="store_true", help="short forms, only to see that they work")
    options = parser.parse_args()
    rows = []
    for path, result in results_of(
        [path for path in FAST_PATHS if options.only in path.name], options.pairs, quick=options.quick
    ):
        print(result.to_json(), flush=True)
        rows.append(row_of(path, result))
    if options.page:
        write_page(rows)


if __name__ == "__main__":
    main()
