"""What lies between a task's gates, its operators and its partitions: input processors and record writers."""
