"""``make audit``: an advisory without a sentence fails, a database that does not answer is said, and neither passes for
the other.
"""

from typing import Any

import pytest

from tests import audit

PAGE = """# Dependencies

| `CVE-2020-0001` | elsewhere | this table is not the list |

## Advisories

| advisory | package | does flowlet reach its code? |
|---|---|---|
| CVE-2026-0001, GHSA-aaaa-bbbb-cccc | `web` | Not from Python: the reader is not bound. |
| CVE-2026-0002 | `web` | |

## Later
| CVE-2026-0003 | `web` | Too late. |
"""
PACKAGES = {"web": "1.0", "wide-columns": "2.0"}


def report(*advisories: dict[str, Any], name: str = "wide_columns") -> dict[str, Any]:
    """Return a report as pip-audit prints it; pip-audit chooses how to spell names."""
    return {
        "dependencies": [
            {"name": "web", "version": "1.0", "vulns": list(advisories)},
            {"name": name, "version": "2.0", "vulns": []},
        ]
    }


def advisory(name: str, *aliases: str) -> dict[str, Any]:
    return {"id": name, "aliases": list(aliases), "fix_versions": ["1.1"], "description": "It reads too far."}


@pytest.mark.parametrize(
    ("found", "code", "text"),
    [
        pytest.param(report(), 0, "2 packages asked about", id="nothing known"),
        pytest.param(report(advisory("CVE-2026-0001")), 0, "Not from Python: the reader is not bound.", id="reviewed"),
        pytest.param(
            report(advisory("PYSEC-2026-1", "GHSA-aaaa-bbbb-cccc")), 0, "Not from Python", id="reviewed under an alias"
        ),
        pytest.param(
            report(advisory("CVE-2026-0009")),
            1,
            "web 1.0: CVE-2026-0009 (fixed in 1.1): NO SENTENCE",
            id="not reviewed",
        ),
        pytest.param(
            report(advisory("CVE-2026-0002")), 1, "CVE-2026-0002 (fixed in 1.1): NO SENTENCE", id="an empty sentence"
        ),
        pytest.param(report(advisory("CVE-2026-0003")), 1, "NO SENTENCE", id="a sentence in another section"),
        pytest.param(report(advisory("CVE-2020-0001")), 1, "NO SENTENCE", id="a sentence before the section"),
        pytest.param(
            report(name="other"), 2, "no advisory database answered for wide-columns 2.0", id="a package is missing"
        ),
        pytest.param(
            {"dependencies": [{"name": "web", "skip_reason": "not found"}]}, 2, "answered for web 1.0", id="skipped"
        ),
        pytest.param({}, 2, "no advisory database answered for web 1.0, wide-columns 2.0", id="an empty report"),
    ],
)
def test_only_what_is_known_and_reviewed_passes(found: dict[str, Any], code: int, text: str) -> None:
    """A database that does not answer gives no clean bill, but an exit code of its own."""
    result, lines = audit.judge(PACKAGES, found, audit.reviewed(PAGE))

    assert result == code
    assert text in "\n".join(lines)


def test_an_advisory_outweighs_a_silent_database() -> None:
    found = report(advisory("CVE-2026-0009"), name="other")

    code, lines = audit.judge(PACKAGES, found, audit.reviewed(PAGE))

    assert code == 1
    assert "no advisory database answered for wide-columns 2.0" in lines[-1]


def test_packages_of_packages_are_asked_about_and_extras_are_not() -> None:
    packages = audit.required_packages()

    assert {"aiohttp", "multidict", "pyarrow", "cffi"} <= set(packages)
    assert not {"lz4", "pyspark", "pandas", "psycopg", "flowlet"} & set(packages)


def test_every_sentence_of_our_list_says_something() -> None:
    sentences = audit.reviewed(audit.PAGE.read_text(encoding="utf-8"))

    assert sentences
    assert all(len(sentence) > 20 for sentence in sentences.values())
