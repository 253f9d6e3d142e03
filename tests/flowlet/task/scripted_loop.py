"""A loop's timers, run by hand, beside a mailbox on the test's thread."""

from collections.abc import Callable

from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import TaskMailbox

_NS_PER_MS = 1_000_000


class ScriptedTimer:
    def __init__(self, due_ns: int, action: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.action = action
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ScriptedLoop:
    """A loop whose clock moves by hand; timers put mails into ``mailbox``, which ``run_mails`` runs."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.wall_offset_ms = 0
        self.timers: list[ScriptedTimer] = []
        self.mailbox = TaskMailbox()
        self.mailbox.bind_to_current_thread()
        self.executor = MailboxExecutor(self.mailbox)

    def clock_ns(self) -> int:
        return self.now_ns

    def now_ms(self) -> int:
        return self.now_ns // _NS_PER_MS + self.wall_offset_ms

    def schedule_timer(self, delay_s: float, action: Callable[[], None]) -> ScriptedTimer:
        timer = ScriptedTimer(self.now_ns + round(delay_s * 1e9), action)
        self.timers.append(timer)
        return timer

    @property
    def num_timers(self) -> int:
        return sum(not timer.is_cancelled for timer in self.timers)

    def advance(self, duration_ms: int) -> None:
        """Let time pass and run the calls that are due on the loop; no mails."""
        end_ns = self.now_ns + duration_ms * _NS_PER_MS
        while due := [timer for timer in self.timers if not timer.is_cancelled and timer.due_ns <= end_ns]:
            timer = min(due, key=lambda timer: timer.due_ns)
            self.timers.remove(timer)
            self.now_ns = max(self.now_ns, timer.due_ns)
            timer.action()
        self.now_ns = end_ns

    def run_mails(self) -> int:
        """Run the mails in the mailbox; return their number."""
        num_mails = 0
        while (mail := self.mailbox.try_take()) is not None:
            mail.run()
            num_mails += 1
        return num_mails

    def pass_time(self, duration_ms: int) -> None:
        """Millisecond by millisecond, mails at once."""
        for _ in range(duration_ms):
            self.advance(1)
            self.run_mails()
