"""Names that speculators imports from transformers and that newer transformers releases do not have."""
