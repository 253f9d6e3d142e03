"""The mutants fit the code they change, and a few of them are killed in every test run; ``make mutants`` runs all."""

import pytest

from tests.mutants.patching import PatchFinder, StaleMutantError, patched, source_of
from tests.mutants.registry import MUTANTS
from tests.mutants.runner import run_healthy, run_mutant

QUICK = ("resume_tells_nobody", "writer_shares_the_readers_reference", "credit_is_not_spent")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_every_mutant_fits_its_module(mutant: object) -> None:
    """A mutant's text is in its module once, and gives valid Python; its test exists."""
    found = next(each for each in MUTANTS if each is mutant)
    text = patched(found.module, found.old, found.new)

    compile(text, found.module, "exec")
    file, *_, name = found.killed_by.split("::")
    assert f"def {name}(" in source_of(file.removesuffix(".py").replace("/", ".")).read_text(encoding="utf-8")


def test_ids_are_unique_and_numerous() -> None:
    """The list has at least 20 bugs of groups A to F, with unique ids."""
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS) >= 20


def test_a_text_that_is_gone_is_said() -> None:
    """A mutant whose text is gone is named: it must follow the code that it changes."""
    with pytest.raises(StaleMutantError, match="holds 0 times"):
        patched("netstack.errors", "no such text", "")


def test_other_modules_are_left_alone() -> None:
    """Only the mutant's own module is replaced, and no file is written."""
    finder = PatchFinder("netstack.errors", "class NetstackError(Exception):", "class NetstackError(ValueError):")

    assert finder.find_spec("netstack.config", None) is None
    spec = finder.find_spec("netstack.errors", None)
    assert spec is not None
    assert "class NetstackError(Exception):" in source_of("netstack.errors").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("mutant_id", QUICK)
def test_some_mutants_are_killed(mutant_id: str) -> None:
    """The named test of a mutant fails with the bug in."""
    number = next(number for number, mutant in enumerate(MUTANTS) if mutant.id == mutant_id)

    result = run_mutant(number)

    assert result.is_killed, result.output


@pytest.mark.slow
def test_a_named_test_passes_without_its_mutant() -> None:
    """The named test of a mutant passes without the bug."""
    number = next(number for number, mutant in enumerate(MUTANTS) if mutant.id == QUICK[0])

    healthy = run_healthy([MUTANTS[number].killed_by])

    assert healthy.returncode == 0, healthy.stdout
