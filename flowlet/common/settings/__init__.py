"""What a job was told to do: plain values that travel with it."""
