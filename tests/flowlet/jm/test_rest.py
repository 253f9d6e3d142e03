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
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import RpcResponse
from tests.flowlet.jm.conftest import Connect, StartJobManager
from tests.flowlet.jm.scripted_task_manager import (
    COLLECT_ID,
    EDGE_ID,
    JOB_ID,
    SECRET,
    SINK_ID,
    SOURCE_ID,
    ScriptedTaskManager,
    user_failure,
    vertex,
    word_count,
)

Address = tuple[str, int]
RUNNING, FINISHED, FAILED, CANCELED = (
    ExecutionState.RUNNING,
    ExecutionState.FINISHED,
    ExecutionState.FAILED,
    ExecutionState.CANCELED,
)


def parsed(answer: RpcResponse) -> Any:
    return msgspec.json.decode(answer.raise_for_status().body)


def errors(answer: RpcResponse) -> list[str]:
    return msgspec.json.decode(answer.body, type=dict[str, list[str]])["errors"]


async def submit(client: RpcClient, job: object = None) -> RpcResponse:
    return await client.request("POST", "/jobs", body=msgspec.msgpack.encode(word_count() if job is None else job))


async def result(client: RpcClient, job_id: str = JOB_ID) -> Any:
    """Wait for the end of the job; return its document."""
    answer = await client.request("GET", f"/jobs/{job_id}/execution-result?timeout_ms=10000")
    assert answer.status == 200
    return parsed(answer)


async def deployed(task_manager: ScriptedTaskManager, number: int) -> list[TaskDeploymentDescriptor]:
    return [await task_manager.expect_deployment() for _ in range(number)]


async def started(client: RpcClient, task_manager: ScriptedTaskManager, job_id: str = JOB_ID) -> list[bytes]:
    """Return the attempts of source and sink of a job that runs on one TaskManager."""
    assert (await submit(client, word_count(job_id))).status == 202
    attempts = [task.attempt for task in await deployed(task_manager, 2)]
    for attempt in attempts:
        await task_manager.report(attempt, RUNNING)
    return attempts


class TestCheckpoints:
    async def test_their_document(self, address: Address, client: RpcClient) -> None:
        await submit(client)

        known = await client.request("GET", f"/jobs/{JOB_ID}/checkpoints")
        unknown = await client.request("GET", f"/jobs/{'f' * 32}/checkpoints")

        assert parsed(known)["counts"] == {"restored": 0, "total": 0, "in_progress": 0, "completed": 0, "failed": 0}
        assert (unknown.status, errors(unknown)) == (404, ["no job with this id"])


class TestLifeOfAJob:
    async def test_it_is_deployed_runs_and_finishes(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        task_manager = await connect(address)
        answer = await submit(client)
        source, sink = await deployed(task_manager, 2)
        for state in (ExecutionState.INITIALIZING, RUNNING, FINISHED):
            for task in (source, sink):
                await task_manager.report(
                    task.attempt, state, metrics=TaskMetrics(num_records_in=7, num_bytes_in_remote=5)
                )

        document = await result(client)

        assert (answer.status, parsed(answer)) == (202, {"jobid": JOB_ID})
        assert (document["state"], document["failure"]) == ("FINISHED", None)
        assert document["status-counts"]["FINISHED"] == 2
        assert [vertex["name"] for vertex in document["vertices"]] == ["source", "sink"]
        assert document["vertices"][1]["metrics"]["read-records"] == 7
        assert document["vertices"][1]["subtasks"][0]["metrics"]["num_bytes_in_remote"] == 5
        assert document["vertices"][1]["subtasks"][0]["attempt"] == sink.attempt.hex()
        assert parsed(await client.request("GET", "/overview"))["jobs-finished"] == 1

    async def test_consumers_are_wired_to_their_producers(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        """The tasks are on two TaskManagers; each sink subtask reads its subpartition of both sources, wherever they
        are.
        """
        first, second = await connect(address, "tm-1", 1, 6001), await connect(address, "tm-2", 1, 6002)
        await submit(client, word_count(sources=2, sinks=2))

        tasks = [*await deployed(first, 2), *await deployed(second, 2)]

        by_name = {(task.task_name, task.subtask): task for task in tasks}
        channels = by_name["sink", 1].gates[0].channels
        assert [(channel.subpartition, channel.tm_id, channel.port) for channel in channels] == [
            (1, "tm-1", 6001),
            (1, "tm-2", 6002),
        ]
        assert [channel.producer for channel in channels] == [by_name["source", subtask].attempt for subtask in (0, 1)]
        assert [channel.partition for channel in channels] == [
            by_name["source", s].partitions[0].partition for s in (0, 1)
        ]
        assert by_name["source", 0].partitions[0].num_subpartitions == 2
        assert by_name["source", 0].chain == b"chain of source"

    async def test_a_failed_task_fails_the_job_with_the_users_traceback(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        task_manager = await connect(address)
        source, sink = await started(client, task_manager)
        await task_manager.report(source, FAILED, user_failure())

        cancelled = await task_manager.expect_cancel()
        await task_manager.report(sink, CANCELED)
        document = await result(client)

        assert cancelled == sink
        assert document["state"] == "FAILED"
        assert document["failure"] == msgspec.to_builtins(user_failure())

    async def test_it_can_be_cancelled(self, address: Address, client: RpcClient, connect: Connect) -> None:
        """The second call changes nothing."""
        task_manager = await connect(address)
        attempts = await started(client, task_manager)

        answers = [await client.request("PATCH", f"/jobs/{JOB_ID}?mode=cancel") for _ in range(2)]
        cancelled = [await task_manager.expect_cancel() for _ in attempts]
        for attempt in attempts:
            await task_manager.report(attempt, CANCELED)

        assert [answer.status for answer in answers] == [202, 202]
        assert cancelled == attempts
        assert (await result(client))["state"] == "CANCELED"

    async def test_the_client_of_an_attached_job_reports_and_learns_of_its_end(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        """A later request learns why the job was cancelled."""
        task_manager = await connect(address)
        await submit(client, msgspec.structs.replace(word_count(), client_heartbeat_timeout_ms=1))
        tasks = await deployed(task_manager, 2)
        for _ in tasks:
            await task_manager.report(await task_manager.expect_cancel(), CANCELED)

        document = await result(client)

        assert document["state"] == "CANCELED"
        assert document["cancel-reason"].startswith("no sign of life from its client for 0.001 s")
        answer = await client.request("PATCH", f"/jobs/{JOB_ID}/clientHeartbeat")
        assert (answer.status, errors(answer)) == (409, ["the job is CANCELED"])
        assert (await client.request("PATCH", f"/jobs/{'f' * 32}/clientHeartbeat")).status == 404

    async def test_a_heartbeat_of_a_client_reaches_its_job(
        self, address: Address, client: RpcClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A heartbeat is taken from the client of a job that does not need it, too."""
        reached: list[str] = []
        monkeypatch.setattr(ClientLease, "renew", lambda lease: reached.append(repr(lease)))
        for job_id, timeout_ms in ((JOB_ID, 60_000), ("f" * 32, None)):
            await submit(client, msgspec.structs.replace(word_count(job_id), client_heartbeat_timeout_ms=timeout_ms))
            assert (await client.request("PATCH", f"/jobs/{job_id}/clientHeartbeat")).status == 202

        assert [each.partition(",")[0] for each in reached] == ["<ClientLease of 60.0 s", "<ClientLease of None s"]

    async def test_a_task_manager_that_disconnects_fails_its_jobs(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        """The jobs fail within moments, and the message names the TaskManager."""
        first, second = await connect(address, "tm-1", 1, 6001), await connect(address, "tm-2", 1, 6002)
        await submit(client, word_count(sources=2, sinks=2))
        await deployed(first, 2)
        survivors = await deployed(second, 2)
        await first.close()

        cancelled = [await second.expect_cancel() for _ in survivors]
        for attempt in cancelled:
            await second.report(attempt, CANCELED)
        document = await result(client)

        assert document["state"] == "FAILED"
        assert document["failure"]["exception_type"] == "TaskManagerLost"
        assert document["failure"]["message"].startswith(
            "TaskManager tm-1 (127.0.0.1:6001, pid 42) was lost: it closed the connection"
        )
        assert parsed(await client.request("GET", "/overview"))["slots-total"] == 1

    async def test_a_task_manager_that_ends_itself_tells_its_jobs_why(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        task_manager = await connect(address)
        await started(client, task_manager)

        await task_manager.send(TaskManagerEnding("task 'm' of job 'other' did not end; it stands in f"))
        document = await result(client)

        expected = (
            "TaskManager tm-1 (127.0.0.1:6000, pid 42) was lost: task 'm' of job 'other' did not end; it stands in f"
        )
        assert (document["failure"]["exception_type"], document["failure"]["message"]) == ("TaskManagerLost", expected)

    async def test_a_cancelled_task_that_does_not_end_is_in_the_documents_and_keeps_its_slot(
        self, start_job_manager: StartJobManager, connect: Connect
    ) -> None:
        address = await start_job_manager(slot_request_timeout_s=0.05)
        task_manager = await connect(address)
        async with RpcClient(*address, SECRET) as client:
            source, sink = await started(client, task_manager)
            await client.request("PATCH", f"/jobs/{JOB_ID}?mode=cancel")
            await task_manager.expect_cancel()
            await task_manager.report(sink, CANCELED)
            await task_manager.send(TaskStuck(source, 1_200, "split", "  File x, in f"))

            document = await result(client)
            overview = parsed(await client.request("GET", "/jobs/overview"))
            await submit(client, word_count("e" * 32))
            next_document = await result(client, "e" * 32)

        assert document["state"] == "CANCELLING"
        assert document["vertices"][0]["subtasks"][0]["stuck"] == {
            "waited-ms": 1200,
            "operator": "split",
            "stack": "  File x, in f",
        }
        assert document["vertices"][1]["subtasks"][0]["stuck"] is None
        assert overview["jobs"][0]["stuck-tasks"] == 1
        assert next_document["state"] == "FAILED"
        message = next_document["failure"]["message"]
        assert (
            "job 'word count' is CANCELLING and keeps its slots, because cancelled tasks of it do not end: 'source' on "
            "tm-1" in message
        )

    async def test_too_few_slots_after_a_loss_name_what_was_lost_and_what_to_do(
        self, start_job_manager: StartJobManager, connect: Connect
    ) -> None:
        address = await start_job_manager(slot_request_timeout_s=0.05)
        await (await connect(address)).close()
        async with RpcClient(*address, SECRET) as client:
            await submit(client)

            message = (await result(client))["failure"]["message"]

        assert "TaskManager tm-1 (127.0.0.1:6000, pid 42) was lost: it closed the connection" in message
        assert "and no TaskManager came in its place: start one" in message

    async def test_a_silent_task_manager_is_lost(self, start_job_manager: StartJobManager, connect: Connect) -> None:
        address = await start_job_manager(heartbeat_timeout_s=1.0, heartbeat_interval_ms=500)  # the job comes before
        async with RpcClient(*address, SECRET) as client:
            task_manager = await connect(address)
            await submit(client)

            document = await result(client)

        silence = "no message from it for 1 s: it hangs, or a function keeps the interpreter's lock"
        assert document["failure"]["message"] == f"TaskManager tm-1 (127.0.0.1:6000, pid 42) was lost: {silence}"
        await deployed(task_manager, 2)
        assert await task_manager.expect_close() == silence

    async def test_the_lost_task_manager_is_the_cause_even_if_its_consumer_was_faster(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        first, second = await connect(address, "tm-1", 1, 6001), await connect(address, "tm-2", 1, 6002)
        await submit(client, word_count(sources=2, sinks=2))
        await deployed(first, 2)
        source, sink = await deployed(second, 2)
        await second.report(
            sink.attempt, FAILED, user_failure("lost 127.0.0.1:6001", "netstack.errors.ConnectionLostError")
        )
        assert await second.expect_cancel() == source.attempt
        await first.close()
        await second.report(source.attempt, CANCELED)

        document = await result(client)

        assert document["failure"]["exception_type"] == "TaskManagerLost"

    async def test_a_task_manager_that_stops_in_order_is_named_too(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        """A TaskManager that stops in order cancels its tasks first, without a request to do so."""
        task_manager = await connect(address)
        for attempt in await started(client, task_manager):
            await task_manager.report(attempt, CANCELED)

        failure = (await result(client))["failure"]

        assert failure["message"].startswith(
            "TaskManager tm-1 (127.0.0.1:6000, pid 42) was lost: it cancelled 'source' (subtask 0)"
        )

    async def test_a_failure_without_a_cause_still_has_a_message(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        task_manager = await connect(address)
        source, sink = await started(client, task_manager)
        await task_manager.report(source, FAILED)
        await task_manager.report(sink, CANCELED)

        assert "'source' (subtask 0) failed on TaskManager tm-1" in (await result(client))["failure"]["message"]


class TestSlots:
    async def test_a_job_waits_for_its_slots(self, address: Address, client: RpcClient, connect: Connect) -> None:
        await submit(client, word_count(sinks=2))
        await connect(address, "tm-1")
        waiting = parsed(await client.request("GET", f"/jobs/{JOB_ID}"))

        second = await connect(address, "tm-2")

        assert waiting["state"] == "CREATED"
        assert [(task.task_name, task.subtask) for task in await deployed(second, 1)] == [("sink", 1)]

    async def test_too_few_slots_fail_the_job_with_what_to_do(
        self, start_job_manager: StartJobManager, connect: Connect
    ) -> None:
        address = await start_job_manager(slot_request_timeout_s=0.05)
        await connect(address, slots=2)
        async with RpcClient(*address, SECRET) as client:
            await submit(client, word_count(sinks=4))

            failure = (await result(client))["failure"]

        expected = (
            "job needs 4 slots, the cluster has 2 on 1 TaskManager after 0.05 s: start more TaskManagers or "
            "lower the parallelism"
        )
        assert (failure["exception_type"], failure["message"]) == ("NoResourceAvailable", expected)

    async def test_a_waiting_job_can_be_cancelled(self, address: Address, client: RpcClient) -> None:
        await submit(client)

        await client.request("PATCH", f"/jobs/{JOB_ID}?mode=cancel")

        assert (await result(client))["state"] == "CANCELED"

    async def test_the_next_job_starts_when_the_slots_come_free(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        """Two jobs never share a slot."""
        task_manager = await connect(address)
        attempts = await started(client, task_manager)
        other = "f" * 32
        await submit(client, word_count(other))
        before = parsed(await client.request("GET", "/overview"))

        for attempt in attempts:
            await task_manager.report(attempt, FINISHED)

        assert before["slots-available"] == 0
        assert {task.job_id for task in await deployed(task_manager, 2)} == {other}

    async def test_jobs_share_the_slots_of_a_cluster(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        task_manager = await connect(address, slots=2)
        other = "f" * 32

        await started(client, task_manager)
        await started(client, task_manager, other)

        assert parsed(await client.request("GET", "/overview"))["slots-available"] == 0


class TestSubmission:
    @pytest.mark.parametrize(
        "body", [b"", b"\xc1", b"{}", msgspec.msgpack.encode({"job_id": 1}), msgspec.msgpack.encode(b"x")]
    )
    async def test_what_is_no_job_graph_is_refused(self, client: RpcClient, body: bytes) -> None:
        answer = await client.request("POST", "/jobs", body=body)

        assert answer.status == 400
        assert errors(answer)[0].startswith("the body is not a job graph: ")

    async def test_a_bad_graph_is_refused_with_the_reason(self, client: RpcClient) -> None:
        answer = await submit(client, msgspec.structs.replace(word_count(), vertices=[vertex(SOURCE_ID, "source", 0)]))

        assert answer.status == 400
        assert errors(answer) == ["vertex 'source': parallelism 0 is not within 1 to 128"]

    async def test_an_id_can_be_used_once(self, client: RpcClient) -> None:
        await submit(client)

        assert (await submit(client)).status == 409

    async def test_too_many_jobs_are_refused(self, start_job_manager: StartJobManager) -> None:
        address = await start_job_manager(max_active_jobs=1)
        async with RpcClient(*address, SECRET) as client:
            await submit(client)

            answer = await submit(client, word_count("f" * 32))

        assert (answer.status, errors(answer)) == (
            503,
            ["1 jobs have not ended yet, which is the limit; wait for one to end, or cancel one"],
        )

    async def test_ended_jobs_are_forgotten_oldest_first(self, start_job_manager: StartJobManager) -> None:
        address = await start_job_manager(max_finished_jobs=2)
        ids = [f"{number:032x}" for number in range(3)]
        async with RpcClient(*address, SECRET) as client:
            for job_id in ids:
                await submit(client, word_count(job_id))
                await client.request("PATCH", f"/jobs/{job_id}?mode=cancel")

            jobs = parsed(await client.request("GET", "/jobs/overview"))["jobs"]

        assert [job["jid"] for job in jobs] == ids[1:]

    async def test_the_users_code_is_dropped_once_it_is_deployed(
        self, address: Address, client: RpcClient, connect: Connect, job_managers: list[Any]
    ) -> None:
        """A hundred ended jobs must not keep a hundred blobs."""
        await started(client, await connect(address))

        job = job_managers[0].dispatcher.jobs.get(JOB_ID).job

        assert [vertex.chain for vertex in job.vertices] == [b"", b""]
        assert [edge.partitioner for edge in job.edges] == [b"", b""]


class TestLongPolls:
    async def test_the_result_of_a_running_job_is_204_after_the_time(self, client: RpcClient) -> None:
        await submit(client)

        assert (await client.request("GET", f"/jobs/{JOB_ID}/execution-result?timeout_ms=1")).status == 204

    async def test_the_limit_cuts_a_longer_wait(self, start_job_manager: StartJobManager) -> None:
        address = await start_job_manager(max_long_poll_ms=1)
        async with RpcClient(*address, SECRET) as client:
            await submit(client)

            assert (await client.request("GET", f"/jobs/{JOB_ID}/execution-result?timeout_ms=999999999")).status == 204

    async def test_everybody_who_waits_is_woken(self, client: RpcClient) -> None:
        await submit(client)

        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(result(client)) for _ in range(3)]
            await client.request("PATCH", f"/jobs/{JOB_ID}?mode=cancel")

        assert [task.result()["state"] for task in waiting] == ["CANCELED"] * 3

    @pytest.mark.parametrize("text", ["-1", "x", "1.5", "", "²", "9999999999"])
    async def test_a_bad_timeout_is_refused(self, client: RpcClient, text: str) -> None:
        await submit(client)
        quoted = text.replace("²", "%C2%B2")

        answer = await client.request("GET", f"/jobs/{JOB_ID}/execution-result?timeout_ms={quoted}")

        assert (answer.status, errors(answer)) == (400, ["timeout_ms must be a number of milliseconds"])

    async def test_collect_waits_for_the_producers(self, address: Address, client: RpcClient, connect: Connect) -> None:
        await submit(client)
        early = await client.request("GET", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}?timeout_ms=1")

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(client.request("GET", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}"))
            task_manager = await connect(address)
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
        assert parsed(waiting.result()) == {"attempt": 0, "restored-checkpoint-id": -1, "channels": [channel]}
        assert sink.partitions[0].num_subpartitions == 1

    async def test_collect_of_the_next_run_waits_for_the_restart(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        """No answer is about the run before."""
        task_manager = await connect(address)
        restart = RestartSettings(RestartKind.FIXED_DELAY, delay_ms=0)
        await submit(client, msgspec.structs.replace(word_count(), settings=JobSettings(restart=restart)))
        path = f"/jobs/{JOB_ID}/collect/{COLLECT_ID}"
        source, sink = await deployed(task_manager, 2)
        early = await client.request("GET", f"{path}?after_attempt=0&timeout_ms=1")
        running = await client.request("GET", f"{path}/progress?attempt=0&timeout_ms=1")

        async with asyncio.TaskGroup() as group:
            progress = group.create_task(client.request("GET", f"{path}/progress?attempt=0&after_checkpoint=-1"))
            waiting = group.create_task(client.request("GET", f"{path}?after_attempt=0"))
            await task_manager.report(source.attempt, FAILED, user_failure())
            assert await task_manager.expect_cancel() == sink.attempt
            await task_manager.report(sink.attempt, CANCELED)
            _, second_sink = await deployed(task_manager, 2)

        assert (early.status, running.status) == (204, 204)
        found = parsed(waiting.result())
        assert (found["attempt"], [each["producer"] for each in found["channels"]]) == (1, [second_sink.attempt.hex()])
        over = parsed(progress.result())
        assert (over["state"], over["last-completed-checkpoint-id"]) in (("RESTARTING", -1), ("RUNNING", -1))
        entries = parsed(await client.request("GET", f"/jobs/{JOB_ID}/exceptions"))["exceptionHistory"]["entries"]
        assert [entry["exceptionName"] for entry in entries] == ["builtins.ValueError"]
        assert parsed(await client.request("GET", f"/jobs/{JOB_ID}"))["numRestarts"] == 1

    @pytest.mark.parametrize("query", ["after_attempt=x", "after_attempt=-2", "timeout_ms=-1"])
    async def test_collect_takes_numbers(self, client: RpcClient, query: str) -> None:
        await submit(client)

        assert (await client.request("GET", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}?{query}")).status == 400

    async def test_collect_from_a_job_that_ended_is_409(self, client: RpcClient) -> None:
        await submit(client)
        await client.request("PATCH", f"/jobs/{JOB_ID}?mode=cancel")

        answer = await client.request("GET", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}")

        assert (answer.status, errors(answer)) == (409, ["the job is CANCELED"])

    @pytest.mark.parametrize("edge_id", [EDGE_ID, "f" * 32, "x"])
    async def test_collect_knows_external_edges_only(self, client: RpcClient, edge_id: str) -> None:
        await submit(client)

        assert (await client.request("GET", f"/jobs/{JOB_ID}/collect/{edge_id}")).status == 404

    async def test_a_reader_reports_its_barriers(self, client: RpcClient) -> None:
        """A report about a producer of a run that is over is taken, too: its reader is late, not wrong."""
        await submit(client)

        answer = await client.request("PATCH", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}?producer={'ab' * 40}&checkpoint=7")

        assert answer.status == 202

    @pytest.mark.parametrize(
        "query",
        [
            "producer=ab",
            "checkpoint=1",
            "producer=xy&checkpoint=1",
            "producer=a&checkpoint=1",
            "producer=ab&checkpoint=-1",
        ],
    )
    async def test_a_report_without_producer_or_barrier_is_refused(self, client: RpcClient, query: str) -> None:
        await submit(client)

        answer = await client.request("PATCH", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}?{query}")

        assert answer.status == 400

    @pytest.mark.parametrize(("attempt", "num_failures"), [(0, 1), (3, 0)])
    async def test_a_reader_whose_connection_broke_has_its_run_fail(
        self, address: Address, client: RpcClient, connect: Connect, attempt: int, num_failures: int
    ) -> None:
        """A report about another run than the present one is late, and changes nothing."""
        await started(client, await connect(address))

        answer = await client.request(
            "PATCH", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}/broken?attempt={attempt}&reason=it%20is%20gone"
        )

        assert answer.status == 202
        entries = parsed(await client.request("GET", f"/jobs/{JOB_ID}/exceptions"))["exceptionHistory"]["entries"]
        assert [each["exceptionName"] for each in entries] == ["ResultsBroken"] * num_failures
        assert all("cannot read the results any further: it is gone" in each["stacktrace"] for each in entries)


class TestErrors:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", f"/jobs/{JOB_ID}"),
            ("PATCH", f"/jobs/{JOB_ID}?mode=cancel"),
            ("GET", f"/jobs/{JOB_ID}/execution-result"),
            ("GET", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}"),
            ("GET", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}/progress"),
            ("GET", f"/jobs/{JOB_ID}/exceptions"),
            ("GET", "/jobs/..%2f..%2fetc%2fpasswd"),
        ],
    )
    async def test_an_unknown_job_is_404(self, client: RpcClient, method: str, path: str) -> None:
        answer = await client.request(method, path)

        assert (answer.status, errors(answer)) == (404, ["no job with this id"])

    @pytest.mark.parametrize("query", ["", "?mode=stop", "?MODE=cancel"])
    async def test_cancel_needs_its_mode(self, client: RpcClient, query: str) -> None:
        await submit(client)

        assert (await client.request("PATCH", f"/jobs/{JOB_ID}{query}")).status == 400
        assert parsed(await client.request("GET", f"/jobs/{JOB_ID}"))["state"] == "CREATED"

    @pytest.mark.parametrize(("method", "path"), [("DELETE", f"/jobs/{JOB_ID}"), ("PUT", "/jobs"), ("GET", "/jobs")])
    async def test_another_method_is_405(self, client: RpcClient, method: str, path: str) -> None:
        answer = await client.request(method, path)

        assert (answer.status, errors(answer)) == (405, ["Method Not Allowed"])

    @pytest.mark.parametrize(
        "path", ["/overview", "/taskmanagers", "/jobs/overview", f"/jobs/{JOB_ID}", "/rpc/taskmanager"]
    )
    async def test_every_page_needs_a_signature(self, address: Address, path: str) -> None:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{address[1]}{path}") as answer:
            assert answer.status == 401

    async def test_health_needs_none(self, address: Address) -> None:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{address[1]}/healthz") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})


class TestOverviews:
    async def test_the_cluster_in_numbers(self, address: Address, client: RpcClient, connect: Connect) -> None:
        task_manager = await connect(address, slots=3)
        await started(client, task_manager)

        assert parsed(await client.request("GET", "/overview")) == {
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

    async def test_the_task_managers(self, address: Address, client: RpcClient, connect: Connect) -> None:
        await connect(address, "tm-1", 3, 6001)

        (document,) = parsed(await client.request("GET", "/taskmanagers"))["taskmanagers"]

        assert document.pop("timeSinceLastHeartbeat") >= 0
        assert document == {
            "id": "tm-1",
            "path": "127.0.0.1:6001",
            "dataPort": 6001,
            "pid": 42,
            "slotsNumber": 3,
            "freeSlots": 3,
        }

    async def test_a_heartbeat_brings_the_metrics_of_running_tasks(
        self, address: Address, client: RpcClient, connect: Connect
    ) -> None:
        """Unknown attempts in it are counted and ignored; two messages on one connection stay in order."""
        task_manager = await connect(address)
        source, sink = await started(client, task_manager)
        await task_manager.heartbeat(**{f"a{source.hex()}": TaskMetrics(num_records_out=9), "aff": TaskMetrics()})
        await task_manager.report(sink, FINISHED)
        await task_manager.report(source, FINISHED)

        document = await result(client)

        assert document["vertices"][0]["metrics"]["write-records"] == 9
        assert parsed(await client.request("GET", "/overview"))["ignored-messages"] == 1

    async def test_jobs_by_state(self, client: RpcClient) -> None:
        await submit(client)

        (job,) = parsed(await client.request("GET", "/jobs/overview"))["jobs"]

        assert (job["jid"], job["name"], job["state"]) == (JOB_ID, "word count", "CREATED")
        assert (job["tasks"]["total"], job["tasks"]["created"]) == (2, 2)
        assert SINK_ID not in job
