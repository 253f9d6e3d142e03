"""One module per way to move buffers from one process to another; ``bench.transport`` runs them side by side."""
