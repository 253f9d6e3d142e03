"""Values of any type as pickles: exact ones, and ones of plain values for senders that are not to be trusted with more."""
