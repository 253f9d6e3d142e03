"""Values of declared types: checked, and as texts and back."""
