"""How each kind of fault is brought about, and how the run sees that it has happened.

Invariants: each function returns only after it has seen the fault and, if the job must start again, that it runs again.
Units:      seconds.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench.cluster import Process
from tests.chaos.chaos_cluster import Place
from tests.chaos.chaos_plan import FaultKind, Harm, PlannedFault
from tests.chaos.chaos_run import ChaosError, ChaosRun

_EXIT_S: Final = 10.0
_FAST_POLL_S: Final = 0.004
_MIN_READ_PAUSE_S: Final = 0.3


def inject(run: ChaosRun, fault: PlannedFault) -> None:
    """Wait for the moment of a fault, let it happen, and wait until the job has got over it.

    Raises:
        ChaosError: it did not happen, or the job did not get over it.
    """
    run.wait_for_checkpoints(fault.after_checkpoints)
    kind = fault.kind
    if kind.link_fault is not None:
        _break_link(run, fault)
    elif kind.name.startswith("RAISE_IN_"):
        _raise_in(run, fault)
    else:
        _INJECTIONS[kind](run, fault)


def _victim(run: ChaosRun, fault: PlannedFault, besides: Place | None = None) -> Place:
    places = [place for place in run.cluster.busy_places() if place is not besides]
    if not places:
        raise ChaosError(f"no TaskManager has tasks: {run.cluster.task_managers()}")
    return places[fault.victim % len(places)]


def _kill(run: ChaosRun, place: Place) -> None:
    place.may_end = True
    run.attacked.add(place.process.pid)
    place.process.send(signal.SIGKILL)
    _see_killed(run, place)


def _see_killed(run: ChaosRun, place: Place) -> None:
    _see_ended(place.process)
    run.report.happened.append(f"TaskManager {place.number} was killed")


def _see_ended(process: Process) -> None:
    code = process.wait(_EXIT_S)
    if code != -signal.SIGKILL:
        raise ChaosError(f"{process!r} ended with {code}, not by SIGKILL")


def _kill_tm(run: ChaosRun, fault: PlannedFault) -> None:
    place, restarts, since_s = _victim(run, fault), run.num_restarts(), time.monotonic()
    _kill(run, place)
    run.cluster.replace_task_manager(place)
    run.wait_recovered(since_s, restarts)


def _kill_twice(run: ChaosRun, fault: PlannedFault) -> None:
    place, restarts, since_s = _victim(run, fault), run.num_restarts(), time.monotonic()
    _kill(run, place)
    run.wait_for("the job notices", lambda: run.num_restarts() > restarts)
    others = [each for each in run.cluster.places if each is not place]
    _kill(run, other := others[fault.victim % len(others)])
    for each in (place, other):
        run.cluster.replace_task_manager(each)
    run.wait_recovered(since_s, restarts)


def _spring(run: ChaosRun, trap: str, *, may_die: bool) -> tuple[int, float]:
    """Wait until a trap that was set has sprung: in which process, and when."""
    if may_die:
        for place in run.cluster.places:
            place.may_end = True
    run.wait_for(f"the trap {trap}", lambda: run.look() and run.stage.has_sprung(trap) is not None)
    pid = run.stage.has_sprung(trap)
    assert pid is not None, "has sprung"
    since_s = time.monotonic()
    run.report.happened.append(f"{trap} in {pid}")
    if may_die:
        run.attacked.add(pid)
        _see_killed(run, run.cluster.place_of(pid))
        for place in run.cluster.places:
            place.may_end = place.process.pid == pid
    return pid, since_s


def _die_in(place: str) -> Callable[[ChaosRun, PlannedFault], None]:
    def injection(run: ChaosRun, fault: PlannedFault) -> None:
        restarts = run.num_restarts()
        run.stage.set_trap(f"die-in-{place}")
        pid, since_s = _spring(run, f"die-in-{place}", may_die=True)
        run.cluster.replace_task_manager(run.cluster.place_of(pid))
        run.wait_recovered(since_s, restarts)

    return injection


def _kill_in_restore(run: ChaosRun, fault: PlannedFault) -> None:
    place, restarts = _victim(run, fault), run.num_restarts()
    run.stage.set_trap("die-in-restore")
    _kill(run, place)
    run.cluster.replace_task_manager(place)
    pid, since_s = _spring(run, "die-in-restore", may_die=True)
    run.cluster.replace_task_manager(run.cluster.place_of(pid))
    run.wait_recovered(since_s, restarts + 1)


def _kill_job_manager(run: ChaosRun, *, with_victim: Place | None) -> None:
    run.check_sessions()
    since_s = time.monotonic()
    former = run.cluster.job_manager
    run.attacked |= {place.process.pid for place in run.cluster.places}
    if with_victim is not None:
        _kill(run, with_victim)
    former.send(signal.SIGKILL)
    _see_ended(former)
    run.report.happened.append("the JobManager was killed")
    if with_victim is not None:
        run.cluster.replace_task_manager(with_victim)
    run.cluster.start_job_manager()
    run.job_manager_replaced()
    run.wait_recovered(since_s, -1)
    if not any(line.get("event") == "job recovered" for line in run.cluster.job_manager_lines()):
        raise ChaosError("the next JobManager does not say that it has recovered the job")


def _stop(run: ChaosRun, fault: PlannedFault) -> None:
    place, restarts, since_s = _victim(run, fault), run.num_restarts(), time.monotonic()
    pid = place.process.pid
    if fault.kind.harm is Harm.RESTART:
        run.attacked.add(pid)
    place.process.send(signal.SIGSTOP)
    try:
        run.wait_for("the process stands still", lambda: _state_of(pid) == "T", poll_s=_FAST_POLL_S)
        _look_for(run, fault.seconds)
    finally:
        place.process.send(signal.SIGCONT)
    run.report.happened.append(f"TaskManager {place.number} stood still for {fault.seconds:.1f} s")
    if fault.kind.harm is Harm.RESTART:
        run.wait_recovered(since_s, restarts)


def _look_for(run: ChaosRun, seconds: float) -> None:
    """Look at the run for a time, which is the fault."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        run.look()
        time.sleep(min(0.05, left_s))


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]


def _fill_disk(run: ChaosRun, fault: PlannedFault) -> None:
    failed, restarts = run.num_failed_checkpoints(), run.num_restarts()
    others = run.cluster.disk / "others"
    try:
        for size in (64 * 1024, 512):
            with suppress(OSError), others.open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(size))
        run.wait_for(
            "a checkpoint fails on a full disk",
            lambda: run.num_failed_checkpoints() > failed or run.num_restarts() > restarts,
        )
    finally:
        others.unlink(missing_ok=True)
    lines = [line for line in run.cluster.job_manager_lines() if "the disk is full" in str(line)]
    if not lines:
        raise ChaosError("no log line says that the disk was full")
    run.report.happened.append("the disk was full")
    run.wait_for_checkpoints(1)


def _damage_old(run: ChaosRun, fault: PlannedFault) -> None:
    deadline = time.monotonic() + _EXIT_S
    while time.monotonic() < deadline:
        complete = sorted(
            (file.parent for file in run.checkpoints.glob("chk-*/_metadata")), key=lambda folder: int(folder.name[4:])
        )
        run.wait_for_checkpoints(0 if len(complete) > 1 else 1)
        for folder in complete[:-1]:  # the oldest may be removed in this moment
            with suppress(OSError):
                files = [file for file in folder.iterdir() if file.name != "_metadata"] or [folder / "_metadata"]
                file = files[fault.victim % len(files)]
                data = bytearray(file.read_bytes())
                at = fault.victim % len(data)
                data[at] ^= 1
                file.write_bytes(bytes(data) if fault.victim % 2 else bytes(data[:at]))
                run.report.happened.append(f"{folder.name}/{file.name} was damaged")
                return
    raise ChaosError(f"there was no older checkpoint below {run.checkpoints}")


def _damage_unfinished(run: ChaosRun, fault: PlannedFault) -> None:
    found: list[str] = []

    def cut_off() -> bool:
        for folder in run.checkpoints.glob("chk-*"):
            if (folder / "_metadata").exists():
                continue
            with suppress(OSError):
                for file in folder.iterdir():
                    size = file.stat().st_size
                    if size > 1 and not file.name.startswith("."):
                        os.truncate(file, size // 2)
                        if not (folder / "_metadata").exists():
                            found.append(f"{folder.name}/{file.name} was cut off before its checkpoint was complete")
                            return True
        return False

    run.wait_for("a file of a checkpoint that is being written", cut_off, poll_s=_FAST_POLL_S)
    run.report.happened += found
    run.wait_for_checkpoints(2)  # a later checkpoint is the newest one, before anything else goes wrong


def _pause_reader(run: ChaosRun, fault: PlannedFault) -> None:
    run.reader.pause()
    try:
        before = len(run.reader.found)
        _look_for(run, fault.seconds + _MIN_READ_PAUSE_S)
        if len(run.reader.found) > before + 1:
            raise ChaosError("the reader did not pause")
    finally:
        run.reader.go_on()
    run.report.happened.append(f"the client did not read for {fault.seconds + _MIN_READ_PAUSE_S:.1f} s")


def _raise_in(run: ChaosRun, fault: PlannedFault) -> None:
    where = fault.kind.name.removeprefix("RAISE_IN_").lower().replace("function", "element")
    restarts = run.num_restarts()
    run.stage.set_trap(f"raise-in-{where}")
    if fault.kind is FaultKind.RAISE_IN_RESTORE:
        place = _victim(run, fault)
        _kill(run, place)
        run.cluster.replace_task_manager(place)
        restarts += 1
    _, since_s = _spring(run, f"raise-in-{where}", may_die=False)
    run.wait_recovered(since_s, restarts)


def _break_link(run: ChaosRun, fault: PlannedFault) -> None:
    assert fault.link is not None, "the plan of a link fault has one"
    place, restarts = _victim(run, fault), run.num_restarts()
    entrance = place.control if fault.kind.is_on_control else place.data
    if fault.kind.is_on_control and fault.kind.harm is Harm.RESTART:
        run.attacked.add(place.process.pid)
    before = len(entrance.fired)
    entrance.arm(fault.link)
    run.wait_for(f"{fault.kind.text} ({entrance!r})", lambda: run.look() is not None and len(entrance.fired) > before)
    struck, since_s = entrance.fired[-1]
    run.report.happened.append(
        f"{entrance.name}: {struck.kind} {struck.direction}, frame {struck.frame}, byte {struck.byte}"
    )
    if fault.kind.harm is Harm.RESTART:
        run.wait_recovered(since_s, restarts)


_INJECTIONS: Final[dict[FaultKind, Callable[[ChaosRun, PlannedFault], None]]] = {
    FaultKind.KILL_TM: _kill_tm,
    FaultKind.KILL_TM_TWICE: _kill_twice,
    FaultKind.KILL_TM_IN_SNAPSHOT: _die_in("snapshot"),
    FaultKind.KILL_TM_IN_NOTIFY: _die_in("notify"),
    FaultKind.KILL_TM_IN_RESTORE: _kill_in_restore,
    FaultKind.KILL_JM: lambda run, _: _kill_job_manager(run, with_victim=None),
    FaultKind.KILL_JM_AND_TM: lambda run, fault: _kill_job_manager(run, with_victim=_victim(run, fault)),
    FaultKind.STOP_TM: _stop,
    FaultKind.ZOMBIE_TM: _stop,
    FaultKind.DISK_FULL: _fill_disk,
    FaultKind.DAMAGE_OLD: _damage_old,
    FaultKind.DAMAGE_UNFINISHED: _damage_unfinished,
    FaultKind.READER_PAUSES: _pause_reader,
}
