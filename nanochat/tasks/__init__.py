"""Tasks: what models are scored on, and conversations that they learn from."""
