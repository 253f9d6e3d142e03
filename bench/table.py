"""A Markdown page from measured figures; it has nothing that was not measured.

Side:  any.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_HEAD: Final = """\
# Measurements

Written by `make bench`; every line is one object that `python -m bench` printed. *foreign* is how many cores other programs used
meanwhile, at most in one run: the lines with more than {noisy:g} are marked with `!` and mean little.
"""  # noqa: E501
_COLUMNS: Final = ("figure", "median", "min", "max", "runs", "unit", "foreign")
NOISY_CORES: Final = 0.15


def markdown(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: the machine, then one table per case in the order of the figures.  Of several figures with one
    name in a case, the last one counts.
    """
    latest = {(document.get("case"), document["name"]): document for document in documents}
    lines = [_HEAD.format(noisy=NOISY_CORES), *_origin(list(latest.values()))]
    cases: dict[str, list[Mapping[str, Any]]] = {}
    for document in latest.values():
        cases.setdefault(document.get("case") or document["name"].split(" ")[0], []).append(document)
    for case, figures in cases.items():
        lines += ["", f"## {case}", *_rows(_COLUMNS, map(_row, figures))]
    return "\n".join(lines) + "\n"


def _origin(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    machines = {
        (str(each["machine"]["cpu"]), int(each["machine"]["usable_cores"]), str(each["machine"]["kernel"]))
        for each in documents
    }
    versions: dict[str, set[str]] = {}
    for document in documents:
        for name, version in document["versions"].items():
            versions.setdefault(name, set()).add(version)
    revisions = sorted({str(document["git_revision"]) for document in documents})
    return [
        *(f"- machine: {cpu}, {cores} cores, Linux {kernel}" for cpu, cores, kernel in sorted(machines)),
        f"- revision: {', '.join(revisions)}",
        f"- versions: {', '.join(f'{name} {chr(47).join(sorted(found))}' for name, found in sorted(versions.items()))}",
    ]


def _row(document: Mapping[str, Any]) -> list[str]:
    foreign = max(document["foreign_cores"], default=0.0)
    figures = [number(document[key]) for key in ("median", "min", "max")]
    mark = " !" if foreign > NOISY_CORES else ""
    return [document["name"], *figures, str(len(document["runs"])), document["unit"], f"{foreign:.2f}{mark}"]


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def number(value: float) -> str:
    """Return four digits, millions as M."""
    return f"{value / 1e6:.4g} M" if abs(value) >= 1e6 else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
