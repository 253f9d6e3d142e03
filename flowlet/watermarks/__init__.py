"""Makes watermarks, combines them, and holds sources back that run ahead."""
