"""``make audit``: known advisories of the packages that flowlet requires, against the sentences that
docs/maintainers/dependencies.md has about them.

pip-audit asks its database about the installed version of every required package, and of every package that one of them
requires.
Exit code 0: each advisory that it knows has its sentence; 1: one has none; 2: no database answered for some package, so
that nothing is known of it.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "maintainers" / "dependencies.md"
HEADING: Final = "## Advisories"
TIMEOUT_S: Final = 300.0
NO_DATABASE: Final = 2
MAX_NAMED: Final = 8


@dataclass(frozen=True)
class Advisory:
    """One advisory about an installed version; ``names`` are its id and its aliases."""

    package: str
    version: str
    names: tuple[str, ...]
    fixed_in: str


def required_packages() -> dict[str, str]:
    """Return names and versions of the installed packages that flowlet requires without an extra, directly or not."""
    found: dict[str, str] = {}
    left: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    while left:
        requirement = Requirement(left.pop())
        name = _normalized(requirement.name)
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = metadata.version(name)
        left += metadata.requires(name) or ()
    return dict(sorted(found.items()))


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def reviewed(page: str) -> dict[str, str]:
    """The sentence of each advisory that stands in the table below the heading, by each of its names."""
    _, _, section = page.partition(f"\n{HEADING}\n")
    section = section.partition("\n## ")[0]
    sentences = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 3 or set(cells[0]) <= set("-: "):
            continue
        for name in re.findall(r"(?:CVE|GHSA|PYSEC)-[\w-]+", cells[0]):
            sentences[name] = cells[2]
    return sentences


def judge(packages: dict[str, str], report: dict[str, Any], sentences: dict[str, str]) -> tuple[int, list[str]]:
    """The exit code for pip-audit's report, and the lines to print."""
    entries = {_normalized(entry["name"]): entry for entry in report.get("dependencies", [])}
    unknown = [name for name in packages if "vulns" not in entries.get(name, {})]
    lines, code = [], 0
    for advisory in _advisories(entries.values()):
        sentence = next((sentences[name] for name in advisory.names if sentences.get(name)), None)
        where = f"{advisory.package} {advisory.version}: {', '.join(advisory.names)} (fixed in {advisory.fixed_in})"
        if sentence is None:
            code = 1
            lines.append(
                f"{where}: NO SENTENCE; say in docs/{PAGE.name} whether flowlet reaches its code, or require a fixed "
                "version"
            )
        else:
            lines.append(f"{where}: {sentence}")
    if unknown:
        some = ", ".join(f"{name} {packages[name]}" for name in unknown[:MAX_NAMED])
        more = f" and {len(unknown) - MAX_NAMED} more" if len(unknown) > MAX_NAMED else ""
        lines.append(f"no advisory database answered for {some}{more}: nothing is known of them")
        code = code or NO_DATABASE
    if not code:
        lines.append(f"{len(packages)} packages asked about; each advisory has its sentence")
    return code, lines


def _advisories(entries: Iterable[dict[str, Any]]) -> Iterator[Advisory]:
    for entry in entries:
        for each in entry.get("vulns", ()):
            names = (each["id"], *each.get("aliases", ()))
            yield Advisory(
                entry["name"], entry["version"], names, ", ".join(each.get("fix_versions", ())) or "no version yet"
            )


def ask_database(packages: dict[str, str]) -> dict[str, Any] | str:
    """The report of pip-audit on these versions; a text says why there is none."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version}\n" for name, version in packages.items())
        file.flush()
        options = ["--format=json", "--progress-spinner=off", "--disable-pip", "--no-deps", "-r", file.name]
        command = [sys.executable, "-m", "pip_audit", *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"pip-audit was not done after {TIMEOUT_S:g} s"
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
        return f"pip-audit ended with {done.returncode}: {last}"
    return report


def main() -> int:
    packages = required_packages()
    report = ask_database(packages)
    if isinstance(report, str):
        print(
            f"no advisory database can be reached, so nothing is known of {len(packages)} packages: {report}",
            file=sys.stderr,
        )
        return NO_DATABASE
    code, lines = judge(packages, report, reviewed(PAGE.read_text(encoding="utf-8")))
    print("\n".join(lines), file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
