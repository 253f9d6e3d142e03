"""Stream tasks: a chain of operators with its gates, partitions and mailbox loop."""
