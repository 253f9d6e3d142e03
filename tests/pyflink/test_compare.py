"""How much of PyFlink's names is here, and that the page tells every difference."""

import pytest

from tests.pyflink.compare import (
    END,
    EXPORT,
    JVM,
    MUST,
    PAGE,
    SHOULD,
    Finding,
    Name,
    Verdict,
    _fits,
    findings,
    read_names,
    shares,
    table,
    written_table,
)

# The shares that are met today, in per cent; these grow only.
FLOORS = {MUST: 99.0, SHOULD: 86.5, JVM: 98.0, EXPORT: 95.0, "all": 93.5}


@pytest.fixture(scope="module")
def judged() -> list[Finding]:
    return findings()


def test_the_share_of_names_does_not_fall(judged: list[Finding]) -> None:
    found = {part: 100 * share for part, share in shares(judged).items()}

    assert {part: share for part, share in found.items() if share < FLOORS[part]} == {}


def test_each_name_that_is_not_met_is_in_the_page(judged: list[Finding]) -> None:
    """The page has each unmet name; ``python -m tests.pyflink.compare --write`` writes it."""
    assert written_table() == table(judged)
    assert END in PAGE.read_text(encoding="utf-8")


def test_a_name_is_listed_once() -> None:
    names = read_names()

    assert len({(each.module, each.name) for each in names}) == len(names) > 1_800


@pytest.mark.parametrize(
    ("theirs", "ours", "fits"),
    [
        ("(value)", "(value)", True),
        ("(value)", "(value, more=1)", True),
        ("(value)", "(value, /more)", True),
        ("(value)", "(value, more)", False),
        ("(value)", "(other)", False),
        ("(value=1)", "(value=2)", False),
        ("(value)", "(value=2)", True),
        ("(value=1)", "(value)", False),
        ("(*args)", "(first=None, *others)", True),
        ("(*args)", "(first, *others)", False),
        ("(value=', ', more=None)", "(value=', ', more=None)", True),
        ("(first, second)", "(*args, **kwargs)", True),
        ("static (value)", "class (value)", True),
        ("static (value)", "(value)", False),
        ("", "(anything)", True),
    ],
)
def test_a_call_of_pyflink_must_be_possible(theirs: str, ours: str, fits: bool) -> None:
    assert _fits(Name(MUST, "module", "Class.method", theirs), ours) == fits


def test_only_what_wraps_java_is_met_by_an_explanation() -> None:
    java, other = (Finding(Name(part, "module", "name", ""), Verdict.EXPLAINED, "why") for part in (JVM, SHOULD))

    assert java.is_met
    assert not other.is_met
