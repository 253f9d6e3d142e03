"""What the client has to do with the thread of the user's program: its interrupts and its frames."""
