"""Names that speculators imports at its first line and that later (or earlier) vLLM releases do not have."""
