"""The words of a report of a stuck thread about the wait that it stands in."""

import sys
import threading
from collections.abc import Callable

from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, TaskMailbox
from flowlet.tm.failure import format_thread_stack, named_wait
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from tests.waiting import PATIENCE_S, spin_until


def name_while(wait: Callable[[], object], end: Callable[[], object]) -> str:
    """Return the end of the report of a thread that stands in ``wait``, which ``end`` ends."""
    thread = threading.Thread(target=wait)
    thread.start()

    def report() -> str:
        frame = sys._current_frames().get(thread.ident or 0)
        return "" if frame is None else format_thread_stack(frame)

    try:
        spin_until(lambda: "\n  It waits for" in report() or not thread.is_alive())
        return report().splitlines()[-1].strip()
    finally:
        end()
        thread.join(PATIENCE_S)


def test_a_task_without_mail() -> None:
    box = TaskMailbox()

    def take() -> None:
        box.bind_to_current_thread()
        box.take()

    name = name_while(take, lambda: box.put_threadsafe(Mail(lambda: None, MIN_PRIORITY, "end")))

    assert name == "It waits for mail, input or room; ended by a mail, so by cancel."


def test_a_task_without_a_free_buffer() -> None:
    """The innermost wait gives the name, as everywhere: the thread parks in slices, in a loop of another module."""
    parent = NetworkBufferPool(2, 64)
    pool = parent.create_buffer_pool(owner="test", num_required=1, max_buffers=1)
    segment = pool.request_segment_nowait(-1)
    assert segment is not None
    taken = []

    name = name_while(lambda: taken.append(pool.request_segment_blocking(0)), lambda: pool.recycle(segment))

    assert name == "It waits for a free buffer of the task's pool; ended by a consumer that reads, or by cancel."
    pool.recycle(taken.pop())
    pool.destroy()
    parent.destroy()


def test_a_thread_that_works_stands_in_no_wait() -> None:
    assert named_wait(sys._getframe()) is None
