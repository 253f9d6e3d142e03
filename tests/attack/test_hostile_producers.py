"""Producers with a valid token push elements that the gate's type does not allow: only their attempts are aborted.

The job of the gate goes on: after each element a good partition is counted exactly.
"""

import random
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from flowlet.client.remote import RemoteTarget
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.ingest import GateClient, GateDescription, GateError, PartitionOffer, open_gate
from flowlet.records import Chunk
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.types.declared_records import DeclaredRecords
from tests.attack.arena import Arena
from tests.attack.bystander import environment_of
from tests.attack.elements import harmless_elements, hostile_elements, mutated, of_values, wrong_values
from tests.attack.functions import as_it_is
from tests.attack.producers import push_bytes

_PAGE_MIB: Final = resource.getpagesize() / 2**20
REFUSED_S: Final = 5.0  # within which an element is refused
_MAX_MORE_MIB: Final = 400  # of a TaskManager, while it reads one element of a few bytes
PAIR: Final = Types.TUPLE([Types.STRING(), Types.LONG()])
CODE: Final = ("os.", "eval", "exec", "posix", "breakpoint", "cloudpickle", "a class")
BOMBS: Final = (
    *("doubled", "colliding", "nested", "constant", "sizes", "arrow", "deep"),
    *("bytearray", "memo", "a million", "Decimal", "no fields"),
)


class Victim:
    """A job that only reads a gate; ``check`` pushes a good partition and finds it in the results."""

    def __init__(self, arena: Arena, type_info: TypeInformation, good: Sequence[Any]) -> None:
        self._arena = arena
        self._good = list(good)
        self._env = environment_of(arena.address)
        results: Any = (
            self._env.from_remote_gate("victim", type_info=type_info).map(as_it_is).execute_and_collect("victim")
        )
        self._results = results
        self.seen: list[Any] = []
        self.error: str | None = None
        self._num_good = 0
        self._thread = threading.Thread(target=self._read, name="reads the victim's results", daemon=True)
        self._thread.start()
        self.gate = open_gate("victim", jobmanager=arena.address, secret_file=arena.secret_file, timeout_s=20)

    @property
    def description(self) -> GateDescription:
        return self.gate.description

    def _read(self) -> None:
        try:
            for record in self._results:
                self.seen.append(record)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            self.error = f"{type(error).__name__}: {error}"

    def check(self, timeout_s: float) -> str | None:
        """Push good records and return an error, or None if the job got them."""
        self._num_good += 1
        before = len(self.seen)
        client = GateClient(self.description, timeout_s=timeout_s)
        try:
            with client.open_partition(PartitionOffer("good", self._num_good)) as writer:
                writer.write_records(list(self._good))
                writer.finish(timeout_s)
        except GateError as error:
            return f"a good partition is not taken: {error}; {self.error}"
        deadline = time.monotonic() + timeout_s
        while (missing := self._missing(before)) and time.monotonic() < deadline and self.error is None:
            time.sleep(0.005)
        return f"of a good partition {missing!r:.200} are missing; {self.error}" if missing else None

    def _missing(self, before: int) -> list[Any]:
        more = self.seen[before:]
        return [record for record in self._good if record not in more]

    @property
    def num_aborted(self) -> int:
        """Attempts that every subtask has seen aborted."""
        host, _, port = self._arena.address.rpartition(":")
        client = RemoteTarget(host, int(port), self._arena.secret_file).open(0)
        try:
            [gate] = client.call(lambda api: api.job(self.gate.description.job_id))["gates"]
        finally:
            client.close()
        return min(int(each["num_aborted"]) for each in gate["subtasks"])

    def close(self) -> None:
        self._results.close()
        self._env.close()
        self._thread.join(30)


def victim(arena: Arena, type_info: TypeInformation, good: Sequence[Any]) -> closing[Victim]:
    return closing(Victim(arena, type_info, good))


def refuse_all(
    arena: Arena, it: Victim, attacks: Mapping[str, Callable[[int], str | None]], is_right: Callable[[Any], bool]
) -> list[str]:
    """Push each; the faults."""
    faults = []
    for number, (name, push) in enumerate(attacks.items()):
        seen_before = len(it.seen)
        with peak_memory(arena) as peak:
            started_s = time.monotonic()
            answer = push(number)
            seconds = time.monotonic() - started_s
            problem = it.check(2 * REFUSED_S)
            if problem is not None:
                faults.append(f"{name}: {problem}")
                break
        wrong = [record for record in it.seen[seen_before:] if not is_right(record)]
        if wrong:
            faults.append(f"{name}: the job got {wrong[0]!r:.80}")
        elif answer is None:
            faults.append(f"{name}: was taken")
        if seconds > REFUSED_S:
            faults.append(f"{name}: {seconds:.1f} s until {answer!r:.100}")
        if peak[0] > _MAX_MORE_MIB:
            faults.append(f"{name}: {peak[0]:.0f} MiB more in one process")
    return faults


@contextmanager
def peak_memory(arena: Arena) -> Iterator[list[float]]:
    """How many MiB a TaskManager had more, at most, than at the beginning."""
    pids = [each.process.pid for each in arena.task_managers]
    before = {pid: _rss(pid) for pid in pids}
    peak, is_over = [0.0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            peak[0] = max(peak[0], *(_rss(pid) - before[pid] for pid in pids))

    thread = threading.Thread(target=watch, name="watches memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()


def _rss(pid: int) -> float:
    """Return the process's memory in MiB, by the cheapest look that there is, for it is repeated."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_MIB
    except OSError:
        return 0.0


def is_pair(record: Any) -> bool:
    return (
        isinstance(record, tuple)
        and len(record) == 2
        and type(record[0]) is str
        and type(record[1]) is int
        and abs(record[1]) < 2**63
    )


def is_long(record: Any) -> bool:
    return type(record) is int and abs(record) < 2**63


def is_map(record: Any) -> bool:
    return isinstance(record, dict) and all(type(key) is str and type(value) is int for key, value in record.items())


TYPES: Final[dict[str, tuple[TypeInformation, list[Any], Callable[[Any], bool]]]] = {
    "pair": (PAIR, [("a", 1), ("b", 2)], is_pair),
    "long": (Types.LONG(), [1, 2, 3], is_long),
    "map": (Types.MAP(Types.STRING(), Types.LONG()), [{"a": 1}, {"b": 2}], is_map),
}


def attack_gate(arena: Arena, name: str, type_name: str, select: Callable[[str], bool]) -> None:
    """Push the hostile elements that are selected into a gate of one type."""
    type_info, good, is_right = TYPES[type_name]
    proof = arena.folder / f"ran {name}"
    elements = {key: make() for key, make in hostile_elements(str(proof)).items() if select(key)}
    with arena.attack(f"gate of {type_name}: {name}", more_mib=600) as it, victim(arena, type_info, good) as job:
        attacks = {key: _pushes(job, data) for key, data in elements.items()}
        faults = refuse_all(arena, job, attacks, is_right)
        if proof.exists():
            faults.append("code of the producer ran in the cluster")
        it.outcome(f"{len(elements) - len({each.partition(':')[0] for each in faults})} of {len(elements)} refused")
        assert not faults, "\n".join(faults)


def _pushes(job: Victim, *elements: bytes) -> Callable[[int], str | None]:
    return lambda number: push_bytes(job.description, elements, number, 2 * REFUSED_S)


@pytest.mark.parametrize("type_name", TYPES)
def test_code(arena: Arena, type_name: str) -> None:
    """No code that a producer sends is run, imported or called."""
    attack_gate(arena, "code", type_name, lambda name: name.startswith(CODE))


@pytest.mark.parametrize(
    ("type_name", "bomb"),
    [("pair", each) for each in hostile_elements("") if each.startswith(BOMBS)]
    + [("map", "doubled tuples"), ("map", "colliding dict")],
)
def test_bomb(arena: Arena, type_name: str, bomb: str) -> None:
    """An element of a few bytes costs neither much memory nor much time."""
    attack_gate(arena, bomb, type_name, lambda name: name == bomb)


@pytest.mark.parametrize("type_name", ["pair", "long"])
def test_broken_elements(arena: Arena, type_name: str) -> None:
    attack_gate(arena, "broken elements", type_name, lambda name: not name.startswith(CODE + BOMBS))


def test_wrong_values(arena: Arena) -> None:
    """Well-formed elements with records of another type than the gate's are refused."""
    with arena.attack("gate of pair: wrong values") as it, victim(arena, PAIR, [("a", 1)]) as job:
        attacks = {
            name: _pushes(job, of_values(values)) for name, values in wrong_values().items() if name != "surrogates"
        }
        faults = refuse_all(arena, job, attacks, is_pair)
        it.outcome(f"{len(attacks) - len({each.partition(':')[0] for each in faults})} of {len(attacks)} refused")
        assert not faults, "\n".join(faults)


def test_watermarks_of_producers(arena: Arena) -> None:
    """Watermarks of a producer are ignored: the gate's source makes its own."""
    with arena.attack("gate of pair: watermarks") as it, victim(arena, PAIR, [("a", 1)]) as job:
        answer = push_bytes(job.description, harmless_elements(), 1, REFUSED_S)
        assert job.check(REFUSED_S) is None
        it.outcome("ignored" if answer is None else answer)


def test_mutations(arena: Arena) -> None:
    """Push mutations of good elements: each is taken as records of the type, or refused."""
    num = 400
    declared = StreamElementSerializer(declared=DeclaredRecords(PAIR))
    good = [
        declared.serialize(Chunk([(f"word {number}", number) for number in range(40)])),
        declared.serialize(Chunk([("a", 1)])),
        of_values([(f"word {number}", number) for number in range(40)]),
        of_values([("a", 1)]),
        of_values([("é", -1), ("", 2**40)]),
    ]
    random_numbers = random.Random(arena.seed)
    with arena.attack(f"gate of pair: {num} mutations") as it, victim(arena, PAIR, [("a", 1)]) as job:
        faults, num_refused = [], 0
        for number in range(num):
            data = mutated(random_numbers, random_numbers.choice(good))
            seen_before = len(job.seen)
            started_s = time.monotonic()
            num_refused += push_bytes(job.description, [data], number, 2 * REFUSED_S) is not None
            if time.monotonic() - started_s > REFUSED_S:
                faults.append(
                    f"SEED={arena.seed}, mutation {number}: {time.monotonic() - started_s:.1f} s: {data.hex()}"
                )
            wrong = [record for record in job.seen[seen_before:] if not is_pair(record)]
            if wrong:
                faults.append(f"SEED={arena.seed}, mutation {number}: the job got {wrong[0]!r:.80}: {data.hex()}")
            if job.error is not None:
                faults.append(f"SEED={arena.seed}, mutation {number}: {job.error:.300}: {data.hex()}")
                break
        assert job.check(2 * REFUSED_S) is None
        it.outcome(f"{num_refused} of {num} refused, {len(faults)} faults")
        assert not faults, "\n".join(faults[:20])
