"""Tests of ``flowlet.jm.rest``: the whole life of jobs over REST and a WebSocket, with a scripted TaskManager."""

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from flowlet.common.job_settings import JobSettings, RestartKind, RestartSettings
from flowlet.jm.client_lease import ClientLease
from flowlet.messages.control_messages import TaskDeploymentDescriptor, TaskManagerEnding, TaskMetrics, TaskStuck
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.rpc.requests import RpcResponse
from tests.flowlet.jm import scripted_task_manager as scripted
from tests.flowlet.jm.conftest import Cluster
from tests.flowlet.jm.scripted_task_manager import JOB_ID, ScriptedTaskManager, user_failure, word_count

S = ExecutionState
JOB, OTHER_ID = f"/jobs/{JOB_ID}", "f" * 32
CANCEL, RESULT, COLLECT = f"{JOB}?mode=cancel", f"{JOB}/execution-result", f"{JOB}/collect/{scripted.COLLECT_ID}"
TM_1 = "TaskManager tm-1 (127.0.0.1:6000, pid 42)"


def parsed(answer: RpcResponse) -> Any:
    return msgspec.json.decode(answer.raise_for_status().body)


def problem(answer: RpcResponse) -> tuple[int, list[str]]:
    return answer.status, msgspec.json.decode(answer.body, type=dict[str, list[str]])["errors"]


async def get(cluster: Cluster, path: str) -> Any:
    return parsed(await cluster.request("GET", path))


async def submit(cluster: Cluster, job: JobGraphMessage | None = None) -> RpcResponse:
    return await cluster.request("POST", "/jobs", msgspec.msgpack.encode(job or word_count()))


async def result(cluster: Cluster, job_id: str = JOB_ID) -> Any:
    """Wait for the end of the job; return its document."""
    answer = await cluster.request("GET", f"/jobs/{job_id}/execution-result?timeout_ms=10000")
    assert answer.status == 200
    return parsed(answer)


async def deployed(task_manager: ScriptedTaskManager, number: int) -> list[TaskDeploymentDescriptor]:
    return [await task_manager.expect_deployment() for _ in range(number)]


async def started(cluster: Cluster, task_manager: ScriptedTaskManager) -> list[bytes]:
    """Return the attempts of source and sink of a job that runs on one TaskManager."""
    assert (await submit(cluster)).status == 202
    attempts = [task.attempt for task in await deployed(task_manager, 2)]
    for attempt in attempts:
        await task_manager.report(attempt, S.RUNNING)
    return attempts


class TestLifeOfAJob:
    async def test_it_is_deployed_runs_and_finishes(self, cluster: Cluster) -> None:
        task_manager = await cluster.connect()
        answer = await submit(cluster)
        source, sink = await deployed(task_manager, 2)
        for state in (S.INITIALIZING, S.RUNNING, S.FINISHED):
            for task in (source, sink):
                metrics = TaskMetrics(num_records_in=7, num_bytes_in_remote=5)
                await task_manager.report(task.attempt, state, metrics=metrics)

        document = await result(cluster)

        assert (answer.status, parsed(answer)) == (202, {"jobid": JOB_ID})
        assert (document["state"], document["failure"]) == ("FINISHED", None)
        assert document["status-counts"]["FINISHED"] == 2
        assert [vertex["name"] for vertex in document["vertices"]] == ["source", "sink"]
        assert document["vertices"][1]["metrics"]["read-records"] == 7
        assert document["vertices"][1]["subtasks"][0]["metrics"]["num_bytes_in_remote"] == 5
        assert document["vertices"][1]["subtasks"][0]["attempt"] == sink.attempt.hex()
        assert (await get(cluster, "/overview"))["jobs-finished"] == 1

    async def test_a_failed_task_fails_the_job_with_the_users_traceback(self, cluster: Cluster) -> None:
        task_manager = await cluster.connect()
        source, sink = await started(cluster, task_manager)
        await task_manager.report(source, S.FAILED, user_failure())

        assert await task_manager.expect_cancel() == sink
        await task_manager.report(sink, S.CANCELED)
        document = await result(cluster)

        assert (document["state"], document["failure"]) == ("FAILED", msgspec.to_builtins(user_failure()))

    async def test_it_can_be_cancelled(self, cluster: Cluster) -> None:
        """The second call changes nothing."""
        task_manager = await cluster.connect()
        attempts = await started(cluster, task_manager)

        assert [(await cluster.request("PATCH", CANCEL)).status for _ in range(2)] == [202, 202]
        assert [await task_manager.expect_cancel() for _ in attempts] == attempts
        for attempt in attempts:
            await task_manager.report(attempt, S.CANCELED)

        assert (await result(cluster))["state"] == "CANCELED"

    async def test_the_client_of_an_attached_job_reports_and_learns_of_its_end(self, cluster: Cluster) -> None:
        """A later request learns why the job was cancelled."""
        task_manager = await cluster.connect()
        await submit(cluster, msgspec.structs.replace(word_count(), client_heartbeat_timeout_ms=1))
        for _ in await deployed(task_manager, 2):
            await task_manager.report(await task_manager.expect_cancel(), S.CANCELED)

        document = await result(cluster)

        assert document["state"] == "CANCELED"
        assert document["cancel-reason"].startswith("no sign of life from its client for 0.001 s")
        answer = await cluster.request("PATCH", f"{JOB}/clientHeartbeat")
        assert problem(answer) == (409, ["the job is CANCELED"])

    async def test_a_heartbeat_of_a_client_reaches_its_job(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A heartbeat is taken from the client of a job that does not need it, too."""
        reached: list[str] = []
        monkeypatch.setattr(ClientLease, "renew", lambda lease: reached.append(repr(lease)))
        for job_id, timeout_ms in ((JOB_ID, 60_000), (OTHER_ID, None)):
            await submit(cluster, msgspec.structs.replace(word_count(job_id), client_heartbeat_timeout_ms=timeout_ms))
            assert (await cluster.request("PATCH", f"/jobs/{job_id}/clientHeartbeat")).status == 202

        assert [each.partition(",")[0] for each in reached] == ["<ClientLease of 60.0 s", "<ClientLease of None s"]

    async def test_a_task_manager_that_disconnects_fails_its_jobs(self, cluster: Cluster) -> None:
        """The jobs fail within moments, and the message names the TaskManager."""
        first, second = await cluster.connect(), await cluster.connect("tm-2")
        await submit(cluster, word_count(sources=2, sinks=2))
        await deployed(first, 2)
        survivors = await deployed(second, 2)
        await first.close()

        for attempt in [await second.expect_cancel() for _ in survivors]:
            await second.report(attempt, S.CANCELED)
        document = await result(cluster)

        assert (document["state"], document["failure"]["exception_type"]) == ("FAILED", "TaskManagerLost")
        assert document["failure"]["message"].startswith(f"{TM_1} was lost: it closed the connection")
        assert (await get(cluster, "/overview"))["slots-total"] == 1

    async def test_a_task_manager_that_ends_itself_tells_its_jobs_why(self, cluster: Cluster) -> None:
        task_manager = await cluster.connect()
        await started(cluster, task_manager)

        await task_manager.send(TaskManagerEnding("task 'm' of job 'other' did not end; it stands in f"))
        failure = (await result(cluster))["failure"]

        expected = f"{TM_1} was lost: task 'm' of job 'other' did not end; it stands in f"
        assert (failure["exception_type"], failure["message"]) == ("TaskManagerLost", expected)

    async def test_a_cancelled_task_that_does_not_end_is_in_the_documents_and_keeps_its_slot(
        self, unstarted: Cluster
    ) -> None:
        await unstarted.start(slot_request_timeout_s=0.05)
        task_manager = await unstarted.connect()
        source, sink = await started(unstarted, task_manager)
        await unstarted.request("PATCH", CANCEL)
        await task_manager.expect_cancel()
        await task_manager.report(sink, S.CANCELED)
        await task_manager.send(TaskStuck(source, 1_200, "split", "  File x, in f"))

        document = await result(unstarted)
        overview = await get(unstarted, "/jobs/overview")
        await submit(unstarted, word_count(OTHER_ID))
        next_document = await result(unstarted, OTHER_ID)

        assert document["state"] == "CANCELLING"
        stuck = {"waited-ms": 1200, "operator": "split", "stack": "  File x, in f"}
        assert [vertex["subtasks"][0]["stuck"] for vertex in document["vertices"]] == [stuck, None]
        assert overview["jobs"][0]["stuck-tasks"] == 1
        assert next_document["state"] == "FAILED"
        assert (
            "job 'word count' is CANCELLING and keeps its slots, because cancelled tasks of it do not end: 'source' on "
            "tm-1" in next_document["failure"]["message"]
        )

    async def test_too_few_slots_after_a_loss_name_what_was_lost_and_what_to_do(self, unstarted: Cluster) -> None:
        await unstarted.start(slot_request_timeout_s=0.05)
        await (await unstarted.connect()).close()
        await submit(unstarted)

        message = (await result(unstarted))["failure"]["message"]

        assert f"{TM_1} was lost: it closed the connection" in message
        assert "and no TaskManager came in its place: start one" in message

    async def test_a_silent_task_manager_is_lost(self, unstarted: Cluster) -> None:
        await unstarted.start(heartbeat_timeout_s=1.0, heartbeat_interval_ms=500)  # the job comes before
        task_manager = await unstarted.connect()
        await submit(unstarted)

        document = await result(unstarted)

        silence = "no message from it for 1 s: it hangs, or a function keeps the interpreter's lock"
        assert document["failure"]["message"] == f"{TM_1} was lost: {silence}"
        await deployed(task_manager, 2)
        assert await task_manager.expect_close() == silence

    async def test_the_lost_task_manager_is_the_cause_even_if_its_consumer_was_faster(self, cluster: Cluster) -> None:
        first, second = await cluster.connect("tm-1"), await cluster.connect("tm-2")
        await submit(cluster, word_count(sources=2, sinks=2))
        await deployed(first, 2)
        source, sink = await deployed(second, 2)
        symptom = user_failure("lost 127.0.0.1:6001", "netstack.errors.ConnectionLostError")
        await second.report(sink.attempt, S.FAILED, symptom)
        assert await second.expect_cancel() == source.attempt
        await first.close()
        await second.report(source.attempt, S.CANCELED)

        assert (await result(cluster))["failure"]["exception_type"] == "TaskManagerLost"

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            pytest.param(S.CANCELED, f"{TM_1} was lost: it cancelled 'source' (subtask 0)", id="it stops in order"),
            pytest.param(S.FAILED, f"'source' (subtask 0) failed on {TM_1}", id="it gives no cause"),
        ],
    )
    async def test_a_task_that_ends_without_a_request_or_a_cause_is_named(
        self, cluster: Cluster, state: ExecutionState, message: str
    ) -> None:
        """A TaskManager that stops in order cancels its tasks first, without a request to do so."""
        task_manager = await cluster.connect()
        source, sink = await started(cluster, task_manager)
        await task_manager.report(source, state)
        await task_manager.report(sink, S.CANCELED)

        assert (await result(cluster))["failure"]["message"].startswith(message)


class TestSlots:
    async def test_a_job_waits_for_its_slots(self, cluster: Cluster) -> None:
        await submit(cluster, word_count(sinks=2))
        await cluster.connect("tm-1")
        waiting = await get(cluster, JOB)

        second = await cluster.connect("tm-2")

        assert waiting["state"] == "CREATED"
        assert [(task.task_name, task.subtask) for task in await deployed(second, 1)] == [("sink", 1)]

    async def test_too_few_slots_fail_the_job_with_what_to_do(self, unstarted: Cluster) -> None:
        await unstarted.start(slot_request_timeout_s=0.05)
        await unstarted.connect(slots=2)
        await submit(unstarted, word_count(sinks=4))

        failure = (await result(unstarted))["failure"]

        expected = (
            "job needs 4 slots, the cluster has 2 on 1 TaskManager after 0.05 s: start more TaskManagers or "
            "lower the parallelism"
        )
        assert (failure["exception_type"], failure["message"]) == ("NoResourceAvailable", expected)

    async def test_the_next_job_starts_when_the_slots_come_free(self, cluster: Cluster) -> None:
        """Two jobs never share a slot."""
        task_manager = await cluster.connect()
        attempts = await started(cluster, task_manager)
        await submit(cluster, word_count(OTHER_ID))
        before = await get(cluster, "/overview")

        for attempt in attempts:
            await task_manager.report(attempt, S.FINISHED)

        assert before["slots-available"] == 0
        assert {task.job_id for task in await deployed(task_manager, 2)} == {OTHER_ID}


class TestSubmission:
    @pytest.mark.parametrize(
        "body", [b"", b"\xc1", b"{}", msgspec.msgpack.encode({"job_id": 1}), msgspec.msgpack.encode(b"x")]
    )
    async def test_what_is_no_job_graph_is_refused(self, cluster: Cluster, body: bytes) -> None:
        status, [error] = problem(await cluster.request("POST", "/jobs", body))

        assert status == 400
        assert error.startswith("the body is not a job graph: ")

    async def test_a_bad_graph_is_refused_with_the_reason(self, cluster: Cluster) -> None:
        bad = msgspec.structs.replace(word_count(), vertices=[scripted.vertex(scripted.SOURCE_ID, "source", 0)])

        reason = "vertex 'source': parallelism 0 is not within 1 to 128"
        assert problem(await submit(cluster, bad)) == (400, [reason])

    async def test_an_id_can_be_used_once(self, cluster: Cluster) -> None:
        await submit(cluster)

        assert (await submit(cluster)).status == 409

    async def test_too_many_jobs_are_refused(self, unstarted: Cluster) -> None:
        await unstarted.start(max_active_jobs=1)
        await submit(unstarted)

        reason = "1 jobs have not ended yet, which is the limit; wait for one to end, or cancel one"
        assert problem(await submit(unstarted, word_count(OTHER_ID))) == (503, [reason])

    async def test_ended_jobs_are_forgotten_oldest_first(self, unstarted: Cluster) -> None:
        await unstarted.start(max_finished_jobs=2)
        ids = [f"{number:032x}" for number in range(3)]
        for job_id in ids:
            await submit(unstarted, word_count(job_id))
            await unstarted.request("PATCH", f"/jobs/{job_id}?mode=cancel")

        assert [job["jid"] for job in (await get(unstarted, "/jobs/overview"))["jobs"]] == ids[1:]


class TestLongPolls:
    async def test_the_result_of_a_running_job_is_204_after_the_time(self, cluster: Cluster) -> None:
        await submit(cluster)

        assert (await cluster.request("GET", f"{RESULT}?timeout_ms=1")).status == 204

    async def test_the_limit_cuts_a_longer_wait(self, unstarted: Cluster) -> None:
        await unstarted.start(max_long_poll_ms=1)
        await submit(unstarted)

        assert (await unstarted.request("GET", f"{RESULT}?timeout_ms=999999999")).status == 204

    async def test_everybody_who_waits_is_woken(self, cluster: Cluster) -> None:
        """The job, which still waits for its slots, is cancelled."""
        await submit(cluster)

        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(result(cluster)) for _ in range(3)]
            await cluster.request("PATCH", CANCEL)

        assert [task.result()["state"] for task in waiting] == ["CANCELED"] * 3

    @pytest.mark.parametrize("text", ["-1", "x", "1.5", "", "%C2%B2", "9999999999"])
    async def test_a_bad_timeout_is_refused(self, cluster: Cluster, text: str) -> None:
        await submit(cluster)

        answer = await cluster.request("GET", f"{RESULT}?timeout_ms={text}")

        assert problem(answer) == (400, ["timeout_ms must be a number of milliseconds"])

    async def test_collect_waits_for_the_producers(self, cluster: Cluster) -> None:
        await submit(cluster)
        early = await cluster.request("GET", f"{COLLECT}?timeout_ms=1")

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(get(cluster, COLLECT))
            task_manager = await cluster.connect()
        _, sink = await deployed(task_manager, 2)

        assert early.status == 204
        channel = {
            "partition": sink.partitions[0].partition.hex(),
            "producer": sink.attempt.hex(),
            "subpartition": 0,
            "tm_id": "tm-1",
            "host": "127.0.0.1",
            "port": 6000,
        }
        assert waiting.result() == {"attempt": 0, "restored-checkpoint-id": -1, "channels": [channel]}
        assert sink.partitions[0].num_subpartitions == 1

    async def test_collect_of_the_next_run_waits_for_the_restart(self, cluster: Cluster) -> None:
        """No answer is about the run before."""
        task_manager = await cluster.connect()
        restart = RestartSettings(RestartKind.FIXED_DELAY, delay_ms=0)
        await submit(cluster, msgspec.structs.replace(word_count(), settings=JobSettings(restart=restart)))
        source, sink = await deployed(task_manager, 2)
        early = await cluster.request("GET", f"{COLLECT}?after_attempt=0&timeout_ms=1")
        running = await cluster.request("GET", f"{COLLECT}/progress?attempt=0&timeout_ms=1")

        async with asyncio.TaskGroup() as group:
            progress = group.create_task(get(cluster, f"{COLLECT}/progress?attempt=0&after_checkpoint=-1"))
            waiting = group.create_task(get(cluster, f"{COLLECT}?after_attempt=0"))
            await task_manager.report(source.attempt, S.FAILED, user_failure())
            assert await task_manager.expect_cancel() == sink.attempt
            await task_manager.report(sink.attempt, S.CANCELED)
            _, second_sink = await deployed(task_manager, 2)

        assert (early.status, running.status) == (204, 204)
        found, over = waiting.result(), progress.result()
        assert (found["attempt"], [each["producer"] for each in found["channels"]]) == (1, [second_sink.attempt.hex()])
        assert (over["state"], over["last-completed-checkpoint-id"]) in (("RESTARTING", -1), ("RUNNING", -1))
        entries = (await get(cluster, f"{JOB}/exceptions"))["exceptionHistory"]["entries"]
        assert [entry["exceptionName"] for entry in entries] == ["builtins.ValueError"]
        assert (await get(cluster, JOB))["numRestarts"] == 1

    async def test_collect_from_a_job_that_ended_is_409(self, cluster: Cluster) -> None:
        await submit(cluster)
        await cluster.request("PATCH", CANCEL)

        assert problem(await cluster.request("GET", COLLECT)) == (409, ["the job is CANCELED"])

    async def test_a_reader_reports_its_barriers(self, cluster: Cluster) -> None:
        """A report about a producer of a run that is over is taken, too: its reader is late, not wrong."""
        await submit(cluster)

        assert (await cluster.request("PATCH", f"{COLLECT}?producer={'ab' * 40}&checkpoint=7")).status == 202

    @pytest.mark.parametrize(("attempt", "num_failures"), [(0, 1), (3, 0)])
    async def test_a_reader_whose_connection_broke_has_its_run_fail(
        self, cluster: Cluster, attempt: int, num_failures: int
    ) -> None:
        """A report about another run than the present one is late, and changes nothing."""
        await started(cluster, await cluster.connect())

        answer = await cluster.request("PATCH", f"{COLLECT}/broken?attempt={attempt}&reason=it%20is%20gone")

        assert answer.status == 202
        entries = (await get(cluster, f"{JOB}/exceptions"))["exceptionHistory"]["entries"]
        assert [each["exceptionName"] for each in entries] == ["ResultsBroken"] * num_failures
        assert all("cannot read the results any further: it is gone" in each["stacktrace"] for each in entries)


class TestErrors:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", JOB),
            ("PATCH", CANCEL),
            ("PATCH", f"{JOB}/clientHeartbeat"),
            ("GET", f"{JOB}/checkpoints"),
            ("GET", RESULT),
            ("GET", COLLECT),
            ("GET", f"{COLLECT}/progress"),
            ("GET", f"{JOB}/exceptions"),
            ("GET", "/jobs/..%2f..%2fetc%2fpasswd"),
        ],
    )
    async def test_an_unknown_job_is_404(self, cluster: Cluster, method: str, path: str) -> None:
        assert problem(await cluster.request(method, path)) == (404, ["no job with this id"])

    @pytest.mark.parametrize(
        ("status", "method", "path"),
        [
            pytest.param(400, "PATCH", JOB, id="cancel without a mode"),
            pytest.param(400, "PATCH", f"{JOB}?mode=stop", id="cancel in another mode"),
            pytest.param(400, "PATCH", f"{JOB}?MODE=cancel", id="cancel with the mode in capitals"),
            pytest.param(400, "GET", f"{COLLECT}?after_attempt=x", id="collect after no number"),
            pytest.param(400, "GET", f"{COLLECT}?after_attempt=-2", id="collect after a negative attempt"),
            pytest.param(400, "GET", f"{COLLECT}?timeout_ms=-1", id="collect for a negative time"),
            pytest.param(404, "GET", f"{JOB}/collect/{scripted.EDGE_ID}", id="collect from an edge inside the job"),
            pytest.param(404, "GET", f"{JOB}/collect/{'f' * 32}", id="collect from an unknown edge"),
            pytest.param(404, "GET", f"{JOB}/collect/x", id="collect from what is no edge"),
            pytest.param(400, "PATCH", f"{COLLECT}?producer=ab", id="a report without a barrier"),
            pytest.param(400, "PATCH", f"{COLLECT}?checkpoint=1", id="a report without a producer"),
            pytest.param(400, "PATCH", f"{COLLECT}?producer=xy&checkpoint=1", id="a producer that is not in hex"),
            pytest.param(400, "PATCH", f"{COLLECT}?producer=a&checkpoint=1", id="a producer of half a byte"),
            pytest.param(400, "PATCH", f"{COLLECT}?producer=ab&checkpoint=-1", id="a negative barrier"),
        ],
    )
    async def test_a_bad_request_is_refused_and_the_job_goes_on_waiting(
        self, cluster: Cluster, status: int, method: str, path: str
    ) -> None:
        await submit(cluster)

        assert (await cluster.request(method, path)).status == status
        assert (await get(cluster, JOB))["state"] == "CREATED"

    @pytest.mark.parametrize("path", ["/overview", "/taskmanagers", "/jobs/overview", JOB, "/rpc/taskmanager"])
    async def test_every_page_needs_a_signature(self, cluster: Cluster, path: str) -> None:
        url = f"http://127.0.0.1:{cluster.address[1]}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert answer.status == 401


class TestOverviews:
    async def test_the_cluster_in_numbers(self, cluster: Cluster) -> None:
        await started(cluster, await cluster.connect(slots=3))

        assert await get(cluster, "/overview") == {
            "taskmanagers": 1,
            "slots-total": 3,
            "slots-available": 2,
            "jobs-running": 1,
            "jobs-finished": 0,
            "jobs-cancelled": 0,
            "jobs-failed": 0,
            "ignored-messages": 0,
            "keeps-jobs": False,
        }

    async def test_the_task_managers(self, cluster: Cluster) -> None:
        await cluster.connect("tm-1", 3, 6001)

        (document,) = (await get(cluster, "/taskmanagers"))["taskmanagers"]

        assert document.pop("timeSinceLastHeartbeat") >= 0
        assert document == {
            "id": "tm-1",
            "path": "127.0.0.1:6001",
            "dataPort": 6001,
            "pid": 42,
            "slotsNumber": 3,
            "freeSlots": 3,
        }

    async def test_a_heartbeat_brings_the_metrics_of_running_tasks(self, cluster: Cluster) -> None:
        """Unknown attempts in it are counted and ignored; two messages on one connection stay in order."""
        task_manager = await cluster.connect()
        source, sink = await started(cluster, task_manager)
        await task_manager.heartbeat(**{f"a{source.hex()}": TaskMetrics(num_records_out=9), "aff": TaskMetrics()})
        await task_manager.report(sink, S.FINISHED)
        await task_manager.report(source, S.FINISHED)

        document = await result(cluster)

        assert document["vertices"][0]["metrics"]["write-records"] == 9
        assert (await get(cluster, "/overview"))["ignored-messages"] == 1

    async def test_jobs_by_state(self, cluster: Cluster) -> None:
        await submit(cluster)

        (job,) = (await get(cluster, "/jobs/overview"))["jobs"]

        assert (job["jid"], job["name"], job["state"]) == (JOB_ID, "word count", "CREATED")
        assert (job["tasks"]["total"], job["tasks"]["created"]) == (2, 2)

    async def test_the_checkpoints_of_a_job_are_counted(self, cluster: Cluster) -> None:
        await submit(cluster)

        counts = {"restored": 0, "total": 0, "in_progress": 0, "completed": 0, "failed": 0}
        assert (await get(cluster, f"{JOB}/checkpoints"))["counts"] == counts
