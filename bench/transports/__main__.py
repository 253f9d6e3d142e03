"""One side of a run: ``python -m bench.transports produce|consume SETTING [PORT]``; prints what happens, one JSON
object per line.

Side:  any.
"""

import importlib
import json
import os
import sys
from typing import Any, cast

from bench.transports.common import CpuUse, PayloadSource, Setting, Stop, Transport, Verifier
from flowlet.tm.latency.latency_policy import apply_switch_interval
from flowlet.tm.process.process_model import GarbageCollectorTuning

MODULES = {"raw": "raw_socket", "loops": "netstack_loops", "threads": "netstack_threads", "job": "netstack_job"}
MODULES |= {"zmq": "zeromq", "grpc": "grpc_aio", "flight": "arrow_flight"}


def tell(**what: Any) -> None:
    """Print one line for the parent."""
    print(json.dumps(what), flush=True)


def prepare(setting: Setting, side: int) -> Transport:
    """Prepare this process as a TaskManager does."""
    if setting.cpus is not None:
        os.sched_setaffinity(0, {setting.cpus[side]})
    apply_switch_interval(setting.switch_interval_ms)
    module = importlib.import_module(f"bench.transports.{MODULES[setting.transport]}")
    GarbageCollectorTuning().freeze()
    return cast(Transport, module)


def produce(setting: Setting) -> None:
    """Run the sending side."""
    transport = prepare(setting, 0)
    source, stop = PayloadSource(setting.num_channels), Stop.at_end_of_input()
    before = CpuUse.now()
    transport.produce(setting, source, stop, lambda port: tell(port=port))
    tell(num_sent=source.num_sent, **CpuUse.now().since(before))


def consume(setting: Setting, port: int) -> None:
    """Run the receiving side."""
    transport = prepare(setting, 1)
    verifier = Verifier(setting.num_channels, lambda: tell(has_started=True), compare_all=setting.compare_all)
    before = CpuUse.now()
    transport.consume(setting, port, verifier)
    verifier.finish()
    tell(num_received=verifier.num_received, seconds=verifier.seconds, **CpuUse.now().since(before))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["produce", text]:
            produce(Setting.from_json(text))
        case ["consume", text, number]:
            consume(Setting.from_json(text), int(number))
        case _:
            sys.exit(__doc__)
