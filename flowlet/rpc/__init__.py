"""Control messages, signed HTTP and the shared secret of a cluster."""
