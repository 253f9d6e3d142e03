"""The smallest Bytewax program; run by the Python of ``.venv-bytewax``, which knows nothing of this repository."""

import bytewax.operators as op
from bytewax.connectors.stdio import StdOutSink
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSource, run_main

flow = Dataflow("hello")
words = op.input("words", flow, TestingSource(["hello", "world"]))
op.output("out", op.map("upper", words, str.upper), StdOutSink())
run_main(flow)
