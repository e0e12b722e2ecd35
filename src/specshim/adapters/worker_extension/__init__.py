"""Adapters for `HiddenStatesWorkerExtension`, one per reply format that its callers expect."""
