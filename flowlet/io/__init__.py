"""What stands between the gates, the operators and the partitions of a task."""
