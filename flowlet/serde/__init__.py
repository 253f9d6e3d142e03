"""Stream elements as bytes and back."""
