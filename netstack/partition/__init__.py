"""The producer side: result partitions between a task thread and the loop."""
