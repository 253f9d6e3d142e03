"""Programs for PyFlink run unchanged, but for the import, and print what PyFlink prints."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.pyflink.run_in_flowlet import PROGRAMS, comparable, run, translated

GOLDEN: Final = Path(__file__).parent / "golden"
# Programs that take longer than a quarter of a second: they wait, or run dozens of streams.
SLOW: Final = ("demo_async_requests", "demo_configuration", "demo_late_records", "demo_rows_and_types")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PROGRAMS]
)
def test_a_program_prints_what_pyflink_prints(name: str) -> None:
    """The golden files are PyFlink's own output; ``make test-pyflink`` runs both side by side."""
    expected = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")

    assert comparable(run(PROGRAMS[name])) == comparable(expected)


def test_only_the_name_of_the_package_is_changed() -> None:
    for program in PROGRAMS.values():
        source = program.read_text(encoding="utf-8")

        changed = [
            line
            for line, after in zip(source.splitlines(), translated(source).splitlines(), strict=True)
            if line != after
        ]

        assert changed
        assert all(re.match(r"from pyflink[\w.]* import ", line) for line in changed)


def test_each_program_has_the_output_of_pyflink() -> None:
    outputs = {file.stem: file.read_text(encoding="utf-8") for file in GOLDEN.glob("demo_*.txt")}

    assert outputs.keys() == PROGRAMS.keys()
    assert len(PROGRAMS) >= 20
    assert [name for name, printed in outputs.items() if "failed:" in printed or not printed] == []
