"""Operators and partitioners travel whole; a part that cannot travel is named."""

import pickle
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.errors import JobSubmissionError
from flowlet.graph.partitioner import KeyGroups, Rebalance
from flowlet.messages.program_bundle import FLOWLET_VERSION, PYTHON_VERSION, ProgramBundle
from flowlet.serde.deploy_blobs import (
    DeploymentError,
    dump_chain,
    dump_partitioner,
    load_chain,
    load_partitioner,
    share_containers,
)
from tests.waiting import PATIENCE_S


class Holder(StreamOperator):
    """An operator that holds anything."""

    def __init__(self, name: str, held: object) -> None:
        self.name = name
        self.held = held


def test_a_chain_arrives_with_its_shape_and_its_functions() -> None:
    """Lambdas travel by value, and so do the objects to which they refer."""
    offset = 40
    chain = [ChainedOperator(Holder("head", None), -1), ChainedOperator(Holder("add", lambda value: value + offset), 0)]

    loaded = load_chain(dump_chain(chain, "v"), "v")

    assert [(each.operator.name, each.parent) for each in loaded] == [("head", -1), ("add", 0)]
    assert loaded[1].operator.held(2) == 42  # type: ignore[attr-defined]  # a Holder


def test_containers_of_many_small_objects_are_shared_by_chains_and_key_selectors() -> None:
    """The containers are shared with the rest of their vertex; each vertex has copies of its own."""
    record = ("shared", 1)
    table: dict[object, object] = {number: str(number) for number in range(50_000)} | {"record": record, "own": []}
    other = [str(number) for number in range(50_000)]
    first, second = ([ChainedOperator(Holder("h", (table, record, extra)), -1)] for extra in ("first", other))
    third, small = KeyGroups(lambda key: table[key], 7), [ChainedOperator(Holder("s", [1]), -1)]
    pieces: dict[bytes, bytes] = {}
    blobs = [
        *(dump_chain(each, "v", 1, pieces) for each in (first, second, small)),
        dump_partitioner(third, "e", pieces),
    ]

    shared = share_containers([first, second, small, third], blobs, pieces)

    assert len(pieces) == 1
    assert len(shared[0]) < 2_000
    assert len(shared[1]) > 200_000, "what only one vertex has"
    assert len(shared[3]) < 5_000
    assert shared[2] == blobs[2]
    loaded = [load_chain(each, "v", ProgramBundle(pieces=pieces))[0].operator.held for each in shared[:2]]  # type: ignore[attr-defined]  # a Holder
    assert loaded == [(table, record, "first"), (table, record, other)]
    assert all(of_table["record"] is of_vertex for of_table, of_vertex, _ in loaded)
    assert loaded[0][0]["own"] is not loaded[1][0]["own"]
    keyed = load_partitioner(shared[3], "v", ProgramBundle(pieces=pieces))
    assert isinstance(keyed, KeyGroups)
    assert keyed.key_selector(7) == "7"


def test_partitioners_arrive_equal_and_with_their_key_selector() -> None:
    keyed = load_partitioner(dump_partitioner(KeyGroups(lambda value: value[0], 7), "e"), "v")

    assert load_partitioner(dump_partitioner(Rebalance(), "e"), "v") == Rebalance()
    assert isinstance(keyed, KeyGroups)
    assert (keyed.key_selector("ab"), keyed.max_parallelism) == ("a", 7)


def test_the_operator_that_cannot_travel_is_named() -> None:
    """A chain may hold ten operators, so the name of the vertex does not suffice."""
    chain = [ChainedOperator(Holder("fine", 1), -1), ChainedOperator(Holder("locked", threading.Lock()), 0)]

    with pytest.raises(
        JobSubmissionError,
        match=r"vertex 'v': operator 'locked' cannot be sent to a TaskManager: `held`, an attribute of a `Holder` "
        r"\(_thread.lock\): "
        r"TypeError: .*lock.*; make what .* in open",
    ) as caught:
        dump_chain(chain, "v")

    assert isinstance(caught.value.__cause__, TypeError)


def test_a_partitioner_that_cannot_travel_names_its_edge() -> None:
    with pytest.raises(JobSubmissionError, match=r"edge 'e': its partitioner cannot be sent"):
        dump_partitioner(KeyGroups(threading.Lock()), "e")


def test_a_module_that_is_missing_here_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_at_the_client.py").write_text("def f(): pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_at_the_client  # type: ignore[import-not-found]  # made above

    blob = dump_chain([ChainedOperator(Holder("h", only_at_the_client.f), -1)], "v")
    monkeypatch.undo()
    del sys.modules["only_at_the_client"]

    with pytest.raises(
        DeploymentError,
        match="task 'v' need the module 'only_at_the_client', which this TaskManager does not find: install it",
    ):
        load_chain(blob, "v")


def test_an_object_that_does_not_come_back_is_reported_with_its_error() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (int, ("no number",))

    with pytest.raises(DeploymentError, match="could not be loaded: ValueError: invalid literal") as caught:
        load_chain(cloudpickle.dumps([Bomb()]), "v")

    assert isinstance(caught.value.__cause__, ValueError)


class Opening:
    """Counts the threads that open blobs at one time; each thread stays a while."""

    inside = 0
    most_inside = 0
    lock = threading.Lock()
    never = threading.Event()

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return Opening.enter, ()

    @staticmethod
    def enter() -> int:
        with Opening.lock:
            Opening.inside += 1
            Opening.most_inside = max(Opening.most_inside, Opening.inside)
        Opening.never.wait(0.05)
        with Opening.lock:
            Opening.inside -= 1
        return 1


def test_one_blob_is_opened_at_a_time() -> None:
    """Opening imports the user's modules: two threads in one circle of imports would deadlock, and Python would fail
    one of them.
    """
    blob = pickle.dumps(Opening())
    threads = [threading.Thread(target=load_partitioner, args=(blob, "t")) for _ in range(3)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert Opening.most_inside == 1


def test_what_cannot_be_opened_says_which_versions_wrote_it() -> None:
    with pytest.raises(DeploymentError, match=r"runs Python 3\.99 with flowlet 0\.0, this process Python 3\."):
        load_chain(b"broken", "t", ProgramBundle(python="3.99", flowlet="0.0"))
    with pytest.raises(DeploymentError) as caught:
        load_chain(b"broken", "t", ProgramBundle(python=PYTHON_VERSION, flowlet=FLOWLET_VERSION))
    assert "Python" not in str(caught.value)


def test_the_version_of_a_bundle_is_that_of_the_distribution() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    assert project["version"] == FLOWLET_VERSION
