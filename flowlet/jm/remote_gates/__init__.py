"""What counts of the writes into remote gates."""
