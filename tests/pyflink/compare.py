"""How many of PyFlink's public names are here, with equal parameters and defaults.

Usage:  ``python -m tests.pyflink.compare`` prints counts per part and every name that is missing or different;
        ``--write`` puts these into docs/coming-from-pyflink.md; ``--installed`` compares the list of names with the
        PyFlink in ``.venv-flink``.
List:   ``golden/api.txt``.
Rules:  a name is met if it is here and can be called with PyFlink's parameters by position and by name, with equal
        defaults; ours may have more parameters.  Methods with two underscores may call them otherwise.  A name that
        wraps Java is also met by an error that explains.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from flowlet.common.not_yet import NotSupportedYetError, missing_attribute
from tests.pyflink.differences import REASONS
from tests.pyflink.surface import AbsentError, find

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PAGE: Final = ROOT / "docs" / "coming-from-pyflink.md"
API: Final = Path(__file__).parent / "golden" / "api.txt"
VENV: Final = ROOT / ".venv-flink"
MUST, SHOULD, JVM, EXPORT = PARTS = ("must", "should", "jvm", "export")
BEGIN, END = "<!-- names: begin -->", "<!-- names: end -->"


@dataclass(frozen=True, slots=True)
class Name:
    """A name of PyFlink: its part, the module without ``pyflink``, the name in it, and its parameters (empty: it is no
    function).
    """

    part: str
    module: str
    name: str
    parameters: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Verdict(Enum):
    MET = "met"
    EXPLAINED = "explained"  # it is not there, and the error says what to use instead
    DIFFERENT = "different"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """A name, its verdict, and the user's message: the error's text, or our parameters."""

    name: Name
    verdict: Verdict
    text: str = ""

    @property
    def is_met(self) -> bool:
        """Whether it counts."""
        return self.verdict is Verdict.MET or (self.verdict is Verdict.EXPLAINED and self.name.part == JVM)

    @property
    def reason(self) -> str:
        """Why it differs and what to use instead."""
        for pattern, reason in REASONS.items():
            if re.fullmatch(pattern, str(self.name)):
                return reason
        return self.text.partition(": ")[2] if self.verdict is Verdict.EXPLAINED else ""


def read_names() -> list[Name]:
    """Return PyFlink's names, each once: a class that is listed in two parts belongs to the first."""
    found: dict[tuple[str, str], Name] = {}
    for line in API.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            for each in _names_of_line(line):
                found.setdefault((each.module, each.name), each)
    return list(found.values())


def _names_of_line(line: str) -> Iterable[Name]:
    head, _, members = line.partition(": ")
    part, module, *rest = head.split(" ", 2)
    owner = rest[0] if rest else ""
    if owner:
        yield _name(part, module, "", owner)
    for member in members.split("; ") if members else ():
        yield _name(part, module, owner, member)


def _name(part: str, module: str, owner: str, text: str) -> Name:
    kind, name, parameters = re.fullmatch(
        r"((?:static|class) "
        r")?([\w.]+)(\(.*\))?",
        text,
    ).groups(default="")  # type: ignore[union-attr] # all lines match
    return Name(part, module, f"{owner}.{name}" if owner else name, f"{kind}{parameters}")


def judge(name: Name) -> Finding:
    """Look the name up in flowlet."""
    try:
        ours = find("flowlet", name.module, name.name)
    except AbsentError as error:
        text = error.reason or _explanation(name)
        return Finding(name, Verdict.EXPLAINED if text else Verdict.MISSING, text)
    return Finding(name, Verdict.MET) if _fits(name, ours) else Finding(name, Verdict.DIFFERENT, ours)


def _explanation(name: Name) -> str:
    """Return the explanation that an instance gives for a missing attribute."""
    owner, _, member = name.name.rpartition(".")
    try:
        find("flowlet", name.module, f"{owner}.__getattr__")
    except AbsentError:
        return ""
    error = missing_attribute(object(), member)
    return str(error) if isinstance(error, NotSupportedYetError) else ""


def _fits(name: Name, ours: str) -> bool:
    member = name.name.rpartition(".")[2]
    if not name.parameters or (member.startswith("__") and member not in ("__init__", "__call__")):
        return True
    if name.parameters.startswith(("static", "class")) and not ours.startswith(("static", "class")):
        return False
    theirs, own = _split(name.parameters), _split(ours)
    if own == ["*args", "**kwargs"]:
        return True
    if theirs == ["*args"]:
        return any(each.startswith("*") for each in own) and all(map(_is_optional, own))
    same = zip(theirs, own, strict=False)
    return (
        len(own) >= len(theirs)
        and all(_takes(each, wanted) for wanted, each in same)
        and all(map(_is_optional, own[len(theirs) :]))
    )


def _takes(ours: str, theirs: str) -> bool:
    return ours == theirs or ours.partition("=")[0] == theirs


def _is_optional(parameter: str) -> bool:
    return "=" in parameter or parameter.startswith(("*", "/"))


def _split(parameters: str) -> list[str]:
    inner = parameters.partition("(")[2].rpartition(")")[0]
    return re.split(r", (?=[\w*/]+(?:=|,|$))", inner) if inner else []


def findings() -> list[Finding]:
    return [judge(name) for name in read_names()]


def shares(judged: Iterable[Finding]) -> dict[str, float]:
    """Return the share of the names that are met, per part and of all."""
    total: Counter[str] = Counter()
    met: Counter[str] = Counter()
    for each in judged:
        for part in (each.name.part, "all"):
            total[part] += 1
            met[part] += each.is_met
    return {part: met[part] / total[part] for part in total}


def table(judged: Iterable[Finding]) -> str:
    """The part of the page that lists unmet names, one row per class and reason; a class that is missing stands for its
    members.
    """
    unmet = [each for each in judged if not each.is_met]
    gone = {(each.name.module, each.name.name) for each in unmet if each.verdict is not Verdict.DIFFERENT}
    rows: dict[tuple[str, str, str], list[str]] = {}
    for each in unmet:
        owner, _, member = each.name.name.rpartition(".")
        if not any((each.name.module, prefix) in gone for prefix in _prefixes(owner)):
            where = f"{each.name.module}.{owner}" if owner else each.name.module
            state = "other parameters" if each.verdict is Verdict.DIFFERENT else "missing"
            rows.setdefault((where, state, each.reason), []).append(member)
    lines = ["| where | name | it is | instead |", "|---|---|---|---|"]
    for (where, state, reason), members in rows.items():
        lines.append(f"| `{where}` | {', '.join(f'`{member}`' for member in members)} | {state} | {reason} |")
    return "\n".join(lines)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def written_table() -> str:
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def _write(judged: list[Finding]) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(judged)}\n{END}{after}", encoding="utf-8")


def differences_from_installed() -> list[str]:
    """Return the differences between the list of names and the PyFlink in ``.venv-flink``."""
    command = [str(VENV / "bin" / "python"), "-P", str(Path(__file__).parent / "surface.py"), "pyflink"]
    installed: dict[str, str] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    listed = {f"{each.module} {each.name}": each.parameters for each in read_names() if each.part != EXPORT}
    return [
        *(
            f"not in the installed PyFlink: {name}"
            for name in sorted(listed.keys() - installed.keys())
            if not name.endswith("__")
        ),
        *(
            f"other parameters: {name} {listed[name]} {installed[name]}"
            for name in sorted(listed.keys() & installed.keys())
            if listed[name].replace("static ", "").replace("class ", "")
            != installed[name].replace("static ", "").replace("class ", "")
        ),
    ]


def main(arguments: list[str]) -> int:
    """Print the comparison; 1 if the list of names differs from an installed PyFlink."""
    parser = argparse.ArgumentParser(prog="python -m tests.pyflink.compare", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--installed", action="store_true", help="compare the list of names with the PyFlink in .venv-flink"
    )
    parser.add_argument("--write", action="store_true", help="write what differs into docs/coming-from-pyflink.md")
    options = parser.parse_args(arguments)
    judged = findings()
    for each in judged:
        if not each.is_met:
            ours = f", here {each.text}" if each.verdict is Verdict.DIFFERENT else ""
            print(f"{each.name.part:6} {each.verdict.value:9} {each.name} {each.name.parameters}{ours}")
    counts = Counter((each.name.part, each.verdict) for each in judged)
    for part in PARTS:
        print(f"{part:6}", ", ".join(f"{counts[part, verdict]} {verdict.value}" for verdict in Verdict))
    print(" ".join(f"{part} {share:.1%}" for part, share in shares(judged).items()))
    if options.write:
        _write(judged)
    if not options.installed:
        return 0
    complaints = differences_from_installed()
    print(*complaints, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
