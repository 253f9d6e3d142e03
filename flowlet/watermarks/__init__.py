"""Where watermarks are made, joined and held back."""
