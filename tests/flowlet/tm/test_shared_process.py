"""Harm that a function has done to the whole process is mended when its task has ended."""

import errno
import fcntl
import logging
import os
import resource
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from flowlet.tm.shared_process import DescriptorLimit, FreeDescriptors, KeptModules, SharedProcess, StandardDescriptors

LIMIT = resource.RLIMIT_NOFILE


def table(*names: str) -> dict[str, ModuleType]:
    return {name: ModuleType(name) for name in names}


def kept(modules: dict[str, ModuleType], *brought: str) -> KeptModules:
    return KeptModules(modules, lambda name: name in brought)


# ---------------------------------------------------------------- modules


def test_modules_that_are_as_they_were_are_not_told() -> None:
    modules = table("json", "flowlet")

    assert kept(modules).mend() == []


def test_a_removed_and_a_replaced_module_are_put_back() -> None:
    modules = table("json", "os", "flowlet")
    before = modules.copy()
    keeper = kept(modules)

    del modules["json"]
    modules["os"] = ModuleType("os")
    told = keeper.mend()

    assert modules == before
    assert told == ["put back 2 modules that were removed or replaced: json, os"]
    assert keeper.mend() == []


def test_of_many_modules_five_are_named() -> None:
    modules = table(*"abcdefg")
    keeper = kept(modules)
    modules.clear()

    assert keeper.mend() == ["put back 7 modules that were removed or replaced: a, b, c, d, e, ..."]


def test_what_the_engine_has_loaded_since_is_kept_too() -> None:
    modules = table("flowlet")
    keeper = kept(modules)
    late = table("flowlet.late", "netstack.late", "users")
    modules |= late
    keeper.mend()

    for name in late:
        del modules[name]
    keeper.mend()

    assert modules["flowlet.late"] is late["flowlet.late"]
    assert modules["netstack.late"] is late["netstack.late"]
    assert "users" not in modules


def test_a_module_that_a_job_has_brought_may_be_exchanged() -> None:
    modules = table("helpers")
    keeper = kept(modules, "helpers")

    other = modules["helpers"] = ModuleType("helpers")

    assert keeper.mend() == []
    assert modules["helpers"] is other


def test_a_package_has_its_own_module_again_as_an_attribute() -> None:
    """The statement ``from package import module`` would otherwise give the replacement."""
    modules = table("package", "package.module")
    vars(modules["package"])["module"] = right = modules["package.module"]
    keeper = kept(modules)

    vars(modules["package"])["module"] = modules["package.module"] = ModuleType("package.module")
    keeper.mend()

    assert vars(modules["package"])["module"] is right


def test_an_attribute_that_only_has_the_name_of_a_module_stays() -> None:
    modules = table("package", "package.function")
    vars(modules["package"])["function"] = len
    keeper = kept(modules)

    del modules["package.function"]
    keeper.mend()

    assert vars(modules["package"])["function"] is len


def test_a_table_may_have_what_is_no_module() -> None:
    """A function has put it there; ``vars`` of it would fail."""
    modules: dict[str, Any] = {"odd": object(), "odd.module": ModuleType("odd.module")}
    before = modules.copy()
    keeper = kept(modules)

    modules["odd.module"] = ModuleType("odd.module")
    keeper.mend()

    assert modules == before


# ---------------------------------------------------------------- descriptors


@pytest.fixture
def standard() -> Iterator[list[int]]:
    """Three descriptors in place of the process's own."""
    descriptors = [os.open(name, os.O_RDWR) for name in ("/dev/null", "/dev/zero", "/dev/full")]
    yield descriptors
    for each in descriptors:
        os.close(each)


@pytest.fixture
def keeper(standard: list[int]) -> Iterator[StandardDescriptors]:
    keeper = StandardDescriptors(standard)
    yield keeper
    keeper.close()


def test_duplicates_are_not_inherited(keeper: StandardDescriptors, standard: list[int]) -> None:
    duplicate = keeper.duplicate_of(standard[1])

    assert duplicate is not None
    assert not os.get_inheritable(duplicate)
    assert os.path.samestat(os.fstat(duplicate), os.fstat(standard[1]))


def test_a_closed_descriptor_is_opened_again_for_children_too(keeper: StandardDescriptors, standard: list[int]) -> None:
    before = os.fstat(standard[1])
    assert keeper.mend() == []

    os.close(standard[1])
    told = keeper.mend()

    assert told == [f"opened standard descriptor {standard[1]} again, which was closed"]
    assert os.path.samestat(os.fstat(standard[1]), before)
    assert os.get_inheritable(standard[1])
    assert keeper.mend() == []


def test_a_descriptor_that_belongs_to_something_else_stays_and_is_told_once(
    keeper: StandardDescriptors, standard: list[int]
) -> None:
    with open(__file__, "rb") as other:
        os.dup2(other.fileno(), standard[1])
        told = [keeper.mend(), keeper.mend()]

        assert os.path.samestat(os.fstat(standard[1]), os.fstat(other.fileno()))
    assert told == [[f"standard descriptor {standard[1]} belongs to something else now; it stays so"], []]
    os.close(standard[1])
    assert len(keeper.mend()) == 1  # now it is free again
    os.dup2(standard[0], standard[1])
    assert len(keeper.mend()) == 1  # and spoilt anew
    os.dup2(keeper.duplicate_of(standard[1]) or 0, standard[1])


def test_a_descriptor_that_was_closed_before_is_left_so(standard: list[int]) -> None:
    unused = fcntl.fcntl(standard[0], fcntl.F_DUPFD, 900)
    os.close(unused)
    keeper = StandardDescriptors([unused])

    assert keeper.duplicate_of(unused) is None
    assert keeper.mend() == []


# ---------------------------------------------------------------- the limit


@pytest.fixture
def restored_limit() -> Iterator[int]:
    before = resource.getrlimit(LIMIT)
    yield before[0]
    resource.setrlimit(LIMIT, before)


def test_a_lowered_limit_is_raised(restored_limit: int) -> None:
    limit = DescriptorLimit()
    hard = resource.getrlimit(LIMIT)[1]
    assert limit.mend() == []

    resource.setrlimit(LIMIT, (10, hard))
    told = limit.mend()

    assert resource.getrlimit(LIMIT) == (restored_limit, hard)
    assert told == [f"raised the limit of file descriptors from 10 to {restored_limit}"]


@pytest.mark.parametrize(
    ("first", "now", "after"),
    [
        ((1024, 4096), (2000, 4096), None),  # somebody needs more
        ((1024, 4096), (10, 512), 512),
        ((-1, -1), (10, -1), -1),
        ((-1, -1), (10, 4096), 4096),
        ((1024, -1), (-1, -1), None),
        ((-1, -1), (-1, -1), None),
    ],
)
def test_limits(
    monkeypatch: pytest.MonkeyPatch, first: tuple[int, int], now: tuple[int, int], after: int | None
) -> None:
    """-1 is infinite; ``after`` None: nothing is changed."""
    changed: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: first)
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, limits: changed.append(limits))
    limit = DescriptorLimit()
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: now)

    told = limit.mend()

    assert changed == ([] if after is None else [(after, now[1])])
    assert ("the hard limit was lowered, too" in str(told)) is (after == now[1] and after != first[0])


def test_that_no_descriptors_are_left_is_told_once() -> None:
    numbers = iter([errno.EMFILE, errno.ENFILE, 0, errno.EIO, errno.EMFILE])

    def opened() -> int:
        if number := next(numbers):
            raise OSError(number, os.strerror(number))
        return os.dup(0)

    free = FreeDescriptors(opened)

    told = [free.look() for _ in range(5)]

    message = "no file descriptors are left: connections to this TaskManager fail"
    assert told == [[message], [], [], [], [message]]


# ---------------------------------------------------------------- the process


def test_a_lowered_limit_is_raised_while_the_task_runs(restored_limit: int, caplog: pytest.LogCaptureFixture) -> None:
    """A task whose reader cannot connect would not end."""
    with SharedProcess(lambda _name: False) as shared, caplog.at_level(logging.WARNING):
        resource.setrlimit(LIMIT, (100, resource.getrlimit(LIMIT)[1]))
        shared.at_heartbeat({"b", "a"})

    assert resource.getrlimit(LIMIT)[0] == restored_limit
    assert "jobs=['a', 'b']" in caplog.text


def test_streams_of_others_are_not_touched() -> None:
    """A program that runs the TaskManager inside, such as this test, has its own streams; they are those of pytest
    here.
    """
    before = sys.stdout, sys.stderr

    with SharedProcess(lambda _name: False):
        assert (sys.stdout, sys.stderr) == before
    assert (sys.stdout, sys.stderr) == before


def test_a_replaced_table_of_modules_is_put_back_and_told(caplog: pytest.LogCaptureFixture) -> None:
    table = sys.modules
    with SharedProcess(lambda _name: False) as shared, caplog.at_level(logging.WARNING):
        shared.before_deployment("job", "one")
        assert caplog.records == []
        sys.modules = {}
        shared.after_task("job", "one")

        assert sys.modules is table
    assert "put back sys.modules, which was replaced" in caplog.text
    assert "at the end of this task" in caplog.text
    assert "job='job' task='one'" in caplog.text
