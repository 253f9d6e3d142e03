"""The comparison notices what an engine could do wrong, and shows it in a small program."""

import pytest

from tests.differential.comparison import difference, shrunk
from tests.differential.faults import FAULTS, Fault, as_actual, breadth_first, run_with
from tests.differential.interpreter import interpret
from tests.differential.programs import Kind, Program, Read, Step, random_program

NUM_PROGRAMS = 200  # as many as every test run makes


@pytest.mark.slow
def test_an_engine_without_faults_does_not_differ() -> None:
    """An engine that runs record by record agrees with the reference."""
    for seed in range(60):
        program = random_program(seed)

        assert difference(program, as_actual(program, interpret(program))) is None, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.replace("_", " "))
def test_a_fault_is_noticed(fault: Fault) -> None:
    """At least one program of every test run shows the fault."""
    programs = map(random_program, range(NUM_PROGRAMS))

    assert any(difference(program, run_with(fault, program)) is not None for program in programs)


@pytest.mark.slow
def test_a_program_that_differs_is_made_small() -> None:
    """A program is shrunk to two records and two functions, which show that functions do not run in turns."""
    program = next(each for each in map(random_program, range(NUM_PROGRAMS)) if _differs(each) and len(each.steps) > 6)

    smallest, problem = shrunk(program, lambda each: run_with(breadth_first, each))

    assert len(smallest.steps) <= 4
    assert _differs(smallest)
    assert "expected" in problem


def _differs(program: Program) -> bool:
    return difference(program, run_with(breadth_first, program)) is not None


def test_a_program_reads_as_python() -> None:
    """A failure is shown as code to type."""
    steps = (Step(0, Kind.COLLECTION, records=(1, [2])), Step(1, Kind.REDUCE, (Read(0),), key="by_size"))

    assert str(Program(7, steps, Read(1, "left"))).splitlines() == [
        "s0 = env.from_collection([1, [2]]).name('step-0')",
        "s1 = s0.key_by(by_size).reduce(None).name('step-1')",
        "s1.get_side_output(TAGS['left']).execute_and_collect()",
    ]
