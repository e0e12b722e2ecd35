"""What is known about pairs of speculators and vLLM releases: what they need, and what was run on them."""
