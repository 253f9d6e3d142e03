"""Pickles in users' hands that name the main module of a program can be read where another main module runs."""

import pickle
import sys
import threading
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from flowlet.shipping.program_modules import MainObjects


def main_module(weight: int) -> ModuleType:
    module = ModuleType("__main__")
    exec(f"class Model:\n    weight = {weight}\n", vars(module))  # a main module
    return module


def pickled_model(monkeypatch: pytest.MonkeyPatch, weight: int) -> tuple[bytes, dict[str, bytes]]:
    """Return the pickle that the user's program wrote, and the objects that were shipped with it."""
    main = main_module(weight)
    with monkeypatch.context() as program:
        program.setitem(sys.modules, "__main__", main)
        return pickle.dumps(main.Model()), {"Model": cloudpickle.dumps(main.Model)}


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> MainObjects:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    return MainObjects()


def test_a_pickle_of_a_class_of_the_main_module_is_read(objects: MainObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    file, shipped = pickled_model(monkeypatch, 3)
    with pytest.raises(AttributeError):
        pickle.loads(file)
    objects.use(shipped)
    model = pickle.loads(file)
    assert model.weight == 3
    assert type(pickle.loads(pickle.dumps(model))) is type(model)


def test_each_task_reads_with_the_classes_of_its_job(objects: MainObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    file, first = pickled_model(monkeypatch, 1)
    _, second = pickled_model(monkeypatch, 2)
    objects.use(first)
    found: list[Any] = []

    def other_task() -> None:
        objects.use(second)
        found.append(pickle.loads(file).weight)

    def thread_of_a_user() -> None:
        found.append(pickle.loads(file).weight)

    for target in (other_task, thread_of_a_user):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join(10)
    assert found == [2, 2]  # the thread of a user gets those that came last
    assert pickle.loads(file).weight == 1


def test_a_name_that_was_not_sent_is_explained(objects: MainObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    _, shipped = pickled_model(monkeypatch, 3)
    objects.use(shipped)
    with pytest.raises(AttributeError, match=r"no class or function 'Other' that could be sent .* import it"):
        _ = sys.modules["__main__"].Other
