"""The load of other programs on the machine, and the machine's speed."""

import subprocess
import sys

from bench import load

_BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_what_a_child_used_is_ours_while_it_lives_and_after_it_ended() -> None:
    before = load.own_cpu_s()

    subprocess.run([sys.executable, "-c", _BURN], check=True)

    assert load.own_cpu_s() - before > 0.2


def test_the_machine_used_at_least_what_we_used() -> None:
    machine_s, own_s = load.machine_cpu_s(), load.own_cpu_s()

    subprocess.run([sys.executable, "-c", _BURN], check=True)

    assert load.machine_cpu_s() - machine_s > 0.8 * (load.own_cpu_s() - own_s)


def test_what_we_use_is_not_foreign() -> None:
    with load.ForeignLoad() as foreign:
        pass

    assert foreign.cores >= 0


def test_calibration_counts_words_per_second() -> None:
    assert load.calibrate() > 10_000
