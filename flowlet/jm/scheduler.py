"""Assigns slots to jobs, and tasks to slots; finds the regions of a job: sets of subtasks that can start again without
the others.  Makes the deployment descriptors of a job's tasks from its graph and their locations (``DeploymentPlan``).

Side:       pure.
Invariants: each slot belongs to at most one job; free + taken = all slots of the registered TaskManagers; a job gets
            all its slots or none.
Source:     Flink ``SlotSharingGroup``, ``DefaultScheduler``, ``cluster.evenly-spread-out-slots``,
            ``RestartPipelinedRegionFailoverStrategy``, ``SchedulingPipelinedRegionComputeUtil``, and
            ``OperatorCoordinator``, which can take the splits of one reader back; ``TaskDeploymentDescriptorFactory``,
            ``EdgeManagerBuildUtil``.
Rules:      a slot sharing group needs as many slots as its widest vertex has subtasks; subtask i of that vertex goes to
            slot i.  A narrower vertex takes the slots with the fewest tasks, so that single sources and sinks do not
            all run in the first process; but if a pointwise edge from a vertex of equal parallelism feeds it, it takes
            the slots of that vertex.  Vertices of different stages (``vertex_stages``) use one set of slots, one after
            the other.  A job takes one slot of each TaskManager in turn, in the order of registration.  It keeps its
            slots while parts of it restart; slots of a lost TaskManager are replaced when a task needs them.  A
            pipelined edge joins the subtasks between which records flow: on a pointwise edge partners, else all.  A
            blocking edge joins none: its consumers run when its producers have finished (``region_order``).  Subtasks
            that share something else are joined, too: subtasks of a source whose splits the JobManager hands out,
            because splits of a failed reader may be with another one by now, and subtasks of aligned sources.  A job
            that the client reads has one region, because its results are one stream from run to run.  So has a job with
            a remote gate.  Such a job with blocking edges keeps its regions, because stages need them, and they fail as
            one.
            On an all-to-all edge each producer has one subpartition per consumer, and consumer i reads subpartition i
            of every producer.  On a pointwise edge a producer has one subpartition for each consumer that it feeds.  On
            an edge that the client reads it has one.  Blobs are passed on unopened.
Absent:     slots of different sizes; giving back single slots while tasks of the job are left.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from flowlet.graph.execution_graph import Execution
from flowlet.graph.partitioner import consumers_of, producers_of
from flowlet.graph.restart_backoff_strategy import RegionOrder
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import Subtask
from flowlet.messages.job_messages import (
    EdgeMessage,
    InputChannelDescriptor,
    InputGateDescriptor,
    JobGraphMessage,
    RestoredState,
    ResultPartitionDescriptor,
)
from flowlet.messages.program_bundle import pieces_of
from netstack.ids import execution_attempt_id, intermediate_partition_id, subtask_of


def vertex_stages(job: JobGraphMessage) -> dict[str, int]:
    """Count by vertex id the blocking edges that lead to it, one after the other; pipelined edges join their ends."""
    stages = {vertex.id: 0 for vertex in job.vertices}
    for _ in job.vertices:  # as often, stages of earlier vertices may still rise because of later ones
        before = dict(stages)
        for edge in job.edges:
            if edge.target is None:
                continue
            stage = max(stages[edge.target], stages[edge.source] + edge.is_blocking)
            stages[edge.target] = stage
            # Records flow while both run: a producer cannot be in an earlier stage than its consumer.
            if not edge.is_blocking:
                stages[edge.source] = stage
        if stages == before:
            break
    return stages


def slots_by_group(job: JobGraphMessage) -> dict[tuple[int, str], int]:
    """Count the slots that each slot sharing group needs in each stage, in the order of first appearance."""
    widths: dict[tuple[int, str], int] = {}
    stages = vertex_stages(job)
    for vertex in job.vertices:
        group = stages[vertex.id], vertex.slot_sharing_group
        widths[group] = max(widths.get(group, 0), vertex.parallelism)
    return widths


def needed_slots(job: JobGraphMessage) -> int:
    """Count the slots that the job needs: in the stage that needs most."""
    of_stage = Counter[int]()
    for (stage, _), width in slots_by_group(job).items():
        of_stage[stage] += width
    # Not the sum: stages run one after the other, in one set of slots.
    return max(of_stage.values())


def new_executions(job: JobGraphMessage, attempt_number: int = 0) -> list[Execution]:
    """Make an execution of every subtask with the id of an attempt, in the order of the job's vertices;
    ``attempt_number``: the first of this JobManager.
    """
    # In the order of the vertices, which is topological: producers are deployed first.
    return [
        _execution(job.job_id, vertex.id, subtask, attempt_number)
        for vertex in job.vertices
        for subtask in range(vertex.parallelism)
    ]


def next_attempt(job_id: str, last: Execution) -> Execution:
    """Make the attempt that follows ``last``."""
    return _execution(job_id, *last.key, last.attempt_number + 1)


def _execution(job_id: str, vertex_id: str, subtask: int, attempt_number: int) -> Execution:
    return Execution(attempt_id(job_id, vertex_id, subtask, attempt_number), vertex_id, subtask, attempt_number)


def attempt_id(job_id: str, vertex_id: str, subtask: int, attempt_number: int = 0) -> bytes:
    """Make the id of an attempt of a subtask; the first one has the number 0."""
    return execution_attempt_id(bytes.fromhex(job_id), bytes.fromhex(vertex_id), subtask, attempt_number)


def assign_tasks(job: JobGraphMessage, executions: Iterable[Execution]) -> dict[bytes, int]:
    """Choose the number of the job's slot for each attempt, which depends on the job alone."""
    stages = vertex_stages(job)
    num_tasks: dict[tuple[int, str], dict[int, int]] = {}  # by stage and group, and by slot
    num_assigned = Counter[int]()  # slots, by stage
    for group, width in slots_by_group(job).items():
        first = num_assigned[group[0]]
        # Groups of one stage lie side by side; stages lie over each other, because they run one after the other.
        num_assigned[group[0]] += width
        num_tasks[group] = dict.fromkeys(range(first, first + width), 0)
    slots: dict[str, list[int]] = {}  # by vertex: one per subtask
    # In topological order: the slots of a vertex's producers are known.
    for vertex in job.vertices:
        tasks = num_tasks[stages[vertex.id], vertex.slot_sharing_group]
        # sorted() is stable: of slots with equally many tasks the first ones.
        slots[vertex.id] = sorted(sorted(tasks, key=tasks.__getitem__)[: vertex.parallelism])
        # Beside the vertex of equal parallelism that feeds this one pointwise: its records never leave the process.
        sources = [slots[edge.source] for edge in job.edges if edge.target == vertex.id and edge.is_pointwise]
        for found in sources:
            if len(found) == vertex.parallelism and tasks.keys() >= set(found):
                slots[vertex.id] = found
                break
        for slot in slots[vertex.id]:
            tasks[slot] += 1
    return {each.attempt: slots[each.vertex_id][each.subtask] for each in executions}


class SlotPool:
    """The slots of all registered TaskManagers.  Threading: one thread."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}  # by TaskManager id, in the order of registration
        # By job id: the TaskManager id of each of its slots; None: the slot is lost.
        self._taken: dict[str, list[str | None]] = {}

    def __repr__(self) -> str:
        return f"<SlotPool {self.num_free} of {self.num_slots} slots free, {len(self._slots)} TaskManagers>"

    @property
    def num_slots(self) -> int:
        """The number of all slots."""
        return sum(self._slots.values())

    @property
    def num_free(self) -> int:
        """The number of slots that belong to no job."""
        return sum(self.free_by_task_manager().values())

    def free_by_task_manager(self) -> dict[str, int]:
        """Return the number of free slots of each TaskManager, in the order of registration."""
        # Counted, not kept: nothing can get out of step with what the jobs hold.
        held = Counter(tm_id for slots in self._taken.values() for tm_id in slots)
        return {tm_id: num_slots - held[tm_id] for tm_id, num_slots in self._slots.items()}

    def add(self, tm_id: str, num_slots: int) -> None:
        """Add the slots of a TaskManager that registered."""
        assert tm_id not in self._slots, "remove() comes before it registers again"
        self._slots[tm_id] = num_slots

    def remove(self, tm_id: str) -> None:
        """Remove the slots of a lost TaskManager, free and taken."""
        del self._slots[tm_id]
        # Lost, not free: the job's other slots keep their numbers, by which its tasks are assigned.
        self._taken = {job: [None if held == tm_id else held for held in slots] for job, slots in self._taken.items()}

    def holds_any(self, job_id: str) -> bool:
        """Whether the job has slots, even if they are lost."""
        return job_id in self._taken

    def num_missing(self, job_id: str, num_slots: int, wanted: Collection[int]) -> int:
        """Count how many more slots the job needs; arguments as for ``allocate``."""
        # A job without slots needs all: ``wanted`` is about lost ones.
        held = self._taken.get(job_id)
        return num_slots if held is None else sum(held[number] is None for number in set(wanted))

    def allocate(self, job_id: str, num_slots: int, wanted: Collection[int] = ()) -> list[str | None] | None:
        """Give the job its slots: return the TaskManager id of each slot that it now holds; None, and nothing taken, if
        too few are free.

        ``wanted``: if the job holds slots, the ones that must not be lost: lost ones are replaced.  A slot that is not
        wanted may be None.
        """
        num_missing = self.num_missing(job_id, num_slots, wanted)
        free = self.free_by_task_manager()
        # All or none: two jobs with half of their slots each would wait for each other.
        if num_missing > sum(free.values()):
            return None
        taken: list[str] = []
        # One of each TaskManager in turn: a job with few tasks spreads over many.
        while len(taken) < num_missing:
            for tm_id in [each for each, num_free in free.items() if num_free][: num_missing - len(taken)]:
                free[tm_id] -= 1
                taken.append(tm_id)
        held = self._taken.get(job_id)
        if held is None:
            held = self._taken[job_id] = list(taken)
        else:
            for number, tm_id in zip((each for each in sorted(set(wanted)) if held[each] is None), taken, strict=True):
                held[number] = tm_id
        # A copy: the pool's own list changes with the next loss.
        return list(held)

    def release(self, job_id: str) -> None:
        """Free the slots of a job of which no task is left, if it has any."""
        self._taken.pop(job_id, None)

    def describe_shortage(self, num_slots: int, waited_s: float) -> str:
        """Write the error text for a job that cannot start."""
        free = "" if self.num_free == self.num_slots else f" ({self.num_free} free)"
        managers = "1 TaskManager" if len(self._slots) == 1 else f"{len(self._slots)} TaskManagers"
        slots = f"{num_slots} slot{'' if num_slots == 1 else 's'}"
        return (
            f"job needs {slots}, the cluster has {self.num_slots}{free} on {managers} after "
            f"{waited_s:g} s: start more TaskManagers or lower the parallelism"
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if a slot is held twice, or one of a lost TaskManager; for tests."""
        held = {tm_id for slots in self._taken.values() for tm_id in slots if tm_id is not None}
        assert held <= set(self._slots), "no slot of a lost TaskManager is held"
        assert all(num_free >= 0 for num_free in self.free_by_task_manager().values()), self._taken


def pipelined_regions(job: JobGraphMessage) -> list[list[Subtask]]:
    """Find the regions of a job, each with its subtasks in the order of deployment."""
    parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}
    subtasks = {key: [Subtask(key, index) for index in range(width)] for key, width in parallelisms.items()}
    region_of = {each: {each} for of_vertex in subtasks.values() for each in of_vertex}  # at first each is alone
    # With blocking edges the regions stay: stages are made of them.
    if fails_as_one(job) and not any(edge.is_blocking for edge in job.edges):
        _join(region_of, list(region_of))
    for edge in job.edges:
        if edge.target is None or edge.is_blocking:
            continue
        # Each subtask's records go to all consumers: no part of them can start again alone.
        if not edge.is_pointwise:
            _join(region_of, subtasks[edge.source] + subtasks[edge.target])
            continue
        for consumer in subtasks[edge.target]:
            read = _read_by(edge, consumer, parallelisms)
            _join(region_of, [consumer, *(Subtask(edge.source, each) for each in read)])
    of_group: dict[str, list[Subtask]] = {}
    for vertex in job.vertices:
        if vertex.split_set is not None:
            _join(region_of, subtasks[vertex.id])
        if vertex.watermark_alignment is not None:
            of_group.setdefault(vertex.watermark_alignment.group, []).extend(subtasks[vertex.id])
    # Behind the loop: a group may span several vertices.
    for members in of_group.values():
        _join(region_of, members)
    regions: dict[int, list[Subtask]] = {}
    for each, region in region_of.items():
        regions.setdefault(id(region), []).append(each)
    return list(regions.values())


def region_order(job: JobGraphMessage, regions: Sequence[Sequence[Subtask]]) -> RegionOrder:
    """Find out for each region whose finished results it reads."""
    region_of = {subtask: number for number, region in enumerate(regions) for subtask in region}
    parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}
    producers: list[set[int]] = [set() for _ in regions]
    for edge in job.edges:
        if edge.target is not None and edge.is_blocking:
            for consumer in [each for each in region_of if each.vertex_id == edge.target]:
                read = _read_by(edge, consumer, parallelisms)
                producers[region_of[consumer]] |= {region_of[Subtask(edge.source, each)] for each in read}
    return RegionOrder.of(producers)


def _read_by(edge: EdgeMessage, consumer: Subtask, parallelisms: Mapping[str, int]) -> range:
    """Return the producers that a consumer reads."""
    num_producers = parallelisms[edge.source]
    if not edge.is_pointwise:
        return range(num_producers)
    return producers_of(consumer.subtask, num_producers, parallelisms[consumer.vertex_id])


def fails_as_one(job: JobGraphMessage) -> bool:
    """Whether all subtasks start again after a failure of one."""
    # The client, or a producer outside, sees one stream: a part of it cannot begin anew.
    is_read = any(edge.target is None for edge in job.edges)
    has_gate = any(vertex.remote_gate is not None for vertex in job.vertices)
    return is_read or has_gate or not job.settings.restart.is_regional


def _join(region_of: dict[Subtask, set[Subtask]], members: Sequence[Subtask]) -> None:
    """Make one region of the regions of all members: the largest one takes in the others."""
    # The largest one: so a subtask moves at most once per doubling of its region, however many edges there are.
    largest = max((region_of[each] for each in members), key=len)
    for each in members:
        region = region_of[each]
        if region is not largest:
            largest |= region
            region_of.update(dict.fromkeys(region, largest))


class DeploymentPlan:
    """Makes the descriptors of a job's tasks; ``locations`` has an entry for the newest attempt of every subtask.

    Immutable.
    """

    def __init__(self, job: JobGraphMessage, locations: Mapping[bytes, messages.RegisterTaskManager]) -> None:
        self._job = job
        # A copy: the job's own changes with the next restart.
        self._locations = dict(locations)
        self._attempts = {subtask_of(attempt): attempt for attempt in locations}
        self._vertices = {vertex.id: vertex for vertex in job.vertices}
        self._parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}

    def __repr__(self) -> str:
        return f"<DeploymentPlan of {self._job.job_id}, {len(self._locations)} tasks>"

    def place_of(self, subtask: Subtask) -> tuple[str, bytes]:
        """Return the TaskManager and the attempt of a subtask."""
        attempt = self._attempts[subtask]
        return self._locations[attempt].tm_id, attempt

    def describe_task(
        self, vertex_id: str, subtask: int, restored: RestoredState | None = None
    ) -> messages.TaskDeploymentDescriptor:
        """Describe everything that a TaskManager needs to run this subtask; ``restored``: the state that it begins
        with.
        """
        vertex = self._vertices[vertex_id]
        outputs = [edge for edge in self._job.edges if edge.source == vertex.id]
        restored = None if restored is None else self._with_partitioners(restored, vertex.parallelism)
        former = [] if restored is None else restored.edges
        blobs = [vertex.chain, *(edge.partitioner for edge in outputs), *(edge.partitioner for edge in former)]
        code = self._job.code
        # Only what its own blobs name: a message has a limit, and the code of other vertices is of no use there.
        if code.pieces:
            code = msgspec.structs.replace(code, pieces=pieces_of(blobs, code.pieces))
        return messages.TaskDeploymentDescriptor(
            job_id=self._job.job_id,
            job_name=self._job.name,
            vertex_id=vertex.id,
            task_name=vertex.name,
            subtask=subtask,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            # The newest attempt: an older one may still be on its way to its end.
            attempt=self._attempts[vertex.id, subtask],
            chain=vertex.chain,
            gates=[
                self._gate(edge, Subtask(vertex.id, subtask)) for edge in self._job.edges if edge.target == vertex.id
            ],
            partitions=[self._partition(edge, subtask) for edge in outputs],
            code=code,
            settings=self._job.settings,
            restored=restored,
        )

    def _with_partitioners(self, restored: RestoredState, parallelism: int) -> RestoredState:
        """Return ``restored`` with the partitioners that choose the subtask of a record in flight, where that may be
        another one now.
        """
        # They are code, and large: sent only where a record may change its subtask.
        if all(each.former_consumers == parallelism and not each.is_by_key_now for each in restored.edges):
            return restored
        blobs = {edge.id: edge.partitioner for edge in self._job.edges}
        edges = [
            msgspec.structs.replace(each, partitioner=blobs[each.edge_id]) if each.edge_id else each
            for each in restored.edges
        ]
        return msgspec.structs.replace(restored, edges=edges)

    def external_channels(self, edge: EdgeMessage) -> list[InputChannelDescriptor]:
        """List the channels through which the client reads ``edge``: one per producer."""
        assert edge.target is None, "the client reads only edges without a target vertex"
        return [self._channel(edge, producer, 0) for producer in range(self._parallelisms[edge.source])]

    def _gate(self, edge: EdgeMessage, consumer: Subtask) -> InputGateDescriptor:
        channels = [
            # A producer counts its subpartitions from its own first consumer on.
            self._channel(edge, producer, consumer.subtask - self._read_from(edge, producer).start)
            for producer in _read_by(edge, consumer, self._parallelisms)
        ]
        return InputGateDescriptor(edge.id, channels, edge.input_id)

    def _channel(self, edge: EdgeMessage, producer: int, subpartition: int) -> InputChannelDescriptor:
        attempt = self._attempts[edge.source, producer]
        location = self._locations[attempt]
        return InputChannelDescriptor(
            partition=intermediate_partition_id(bytes.fromhex(edge.id), producer),
            producer=attempt,
            subpartition=subpartition,
            tm_id=location.tm_id,
            host=location.data_host,
            port=location.data_port,
        )

    def _partition(self, edge: EdgeMessage, subtask: int) -> ResultPartitionDescriptor:
        return ResultPartitionDescriptor(
            edge_id=edge.id,
            partition=intermediate_partition_id(bytes.fromhex(edge.id), subtask),
            num_subpartitions=len(self._read_from(edge, subtask)),
            source_operator=edge.source_operator,
            partitioner=edge.partitioner,
            buffer_timeout_ms=edge.buffer_timeout_ms,
            tag=edge.tag,
            is_blocking=edge.is_blocking,
        )

    def _read_from(self, edge: EdgeMessage, producer: int) -> range:
        """Return the consumers that read from a producer, each a subpartition; the client is one."""
        num_consumers = 1 if edge.target is None else self._parallelisms[edge.target]
        if edge.target is None or not edge.is_pointwise:
            return range(num_consumers)
        return consumers_of(producer, self._parallelisms[edge.source], num_consumers)
