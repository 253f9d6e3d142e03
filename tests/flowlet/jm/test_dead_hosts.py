"""Hosts that vanish behind the control port: the kernel tells both ends, long before heartbeats are missed."""

import socket

import pytest

from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import SessionEndedError
from tests.cut_off import cut_off
from tests.flowlet.jm.conftest import Cluster
from tests.flowlet.jm.scripted_task_manager import JOB_ID, SECRET, word_count
from tests.flowlet.rpc.frames import frames_of
from tests.waiting import PATIENCE_S

OPTIONS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


def options_of(sock: socket.socket) -> dict[str, int]:
    """Return the socket options that find a dead host."""
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return {name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OPTIONS}


async def test_the_kernels_of_both_ends_look_for_the_other_host(unstarted: Cluster) -> None:
    """The kernels notice a lost host within 30 s."""
    await unstarted.start()
    task_manager = await unstarted.connect()
    web = unstarted.job_manager._web
    assert web is not None
    runner = web._runner
    assert runner is not None
    assert runner.server is not None

    (theirs,) = [
        each.transport.get_extra_info("socket") for each in runner.server.connections if each.transport is not None
    ]

    assert options_of(theirs) == OPTIONS
    assert options_of(task_manager.transport.get_extra_info("socket")) == OPTIONS


@pytest.mark.slow  # waits for a timeout of a second; the kernel counts whole ones
async def test_a_task_manager_whose_host_is_gone_is_lost(unstarted: Cluster) -> None:
    """A host that is gone sends neither FIN nor RST, and acknowledges nothing."""
    await unstarted.start(dead_host_timeout_s=1.0)
    task_manager = await unstarted.connect()
    job = unstarted.dispatcher.submit(word_count())
    await task_manager.expect_deployment()

    cut_off(task_manager.transport.get_extra_info("socket"))

    assert await job.wait_until_ended(PATIENCE_S)
    assert job.job_id == JOB_ID
    assert job.graph.failure is not None
    assert "TaskManager tm-1 (127.0.0.1:6000, pid 42) was lost" in job.graph.failure.message
    assert "no message from it" not in job.graph.failure.message


@pytest.mark.slow  # as above
async def test_a_jobmanager_whose_host_is_gone_is_lost(cluster: Cluster) -> None:
    async with RpcClient(*cluster.address, SECRET, dead_host_timeout_s=1.0) as client:
        websocket = await client.open_session()
        cut_off(frames_of(websocket).get_extra_info("socket"))

        with pytest.raises(SessionEndedError):
            await websocket.receive(PATIENCE_S)
