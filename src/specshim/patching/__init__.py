"""The patching mechanism: it knows nothing of vLLM, transformers or speculators.

`model` says what a patch, an adapter and a target are. `hooks` tells when a target has been imported. `patcher` is the
life cycle: arm, patch, record, undo. `planning` decides what a target needs, with `versions` (what is installed),
`contract` (what an adapter expects of the real objects) and `changes` (how something is changed and put back).
`switches` reads the environment.
"""
