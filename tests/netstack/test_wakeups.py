"""``run_all``: every sleeper is woken."""

from functools import partial

import pytest

from netstack.availability import run_all


def test_calls_are_made_in_order() -> None:
    """First to last."""
    made: list[int] = []

    run_all([lambda: made.append(1), lambda: made.append(2), lambda: made.append(3)])

    assert made == [1, 2, 3]


def test_a_broken_call_does_not_stop_the_others() -> None:
    """Every call is made; then the error is raised."""
    made: list[int] = []

    def broken() -> None:
        raise RuntimeError("broken callback")

    with pytest.raises(RuntimeError, match="broken callback"):
        run_all([lambda: made.append(1), broken, lambda: made.append(2)])

    assert made == [1, 2]


def test_an_earlier_error_is_the_context_of_the_last() -> None:
    """Both errors are kept: the earlier one is the context of the later."""

    def fail(text: str) -> None:
        raise RuntimeError(text)

    with pytest.raises(RuntimeError, match="second") as caught:
        run_all([lambda: fail("first"), lambda: fail("second")])

    assert str(caught.value.__context__) == "first"


def test_any_number_of_calls_may_fail() -> None:
    """More calls may fail than the interpreter nests: all are made, and every error is the context of the next one."""
    made: list[int] = []

    def fail(number: int) -> None:
        made.append(number)
        raise RuntimeError(number)

    with pytest.raises(RuntimeError) as caught:
        run_all([partial(fail, number) for number in range(5000)])

    errors: list[BaseException | None] = [caught.value]
    while (error := errors[-1]) is not None:
        errors.append(error.__context__)
    assert made == list(range(5000))
    assert [str(error) for error in errors[:-1]] == [str(number) for number in reversed(made)]
