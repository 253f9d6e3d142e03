"""Stream graph, job graph and execution graph."""
