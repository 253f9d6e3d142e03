"""Flink's network stack on asyncio: credit-based flow control over real TCP.

These names are its API without flowlet; ``examples/netstack_pipe.py`` shows how to use them.  Each process has one
``StandaloneNetwork``.  The producer calls ``serve`` and makes a ``ResultPartition`` under ids that both sides know (20
bytes for the partition, 40 for the attempt that produces it).  The consumer opens a gate with these ids, the producer's
address and an initial credit.  It reads buffers and events at its own pace: the producer never sends more than the
granted credit.
"""

from netstack.late import late_names

__getattr__, __dir__, __all__ = late_names(__name__)
