"""The patching mechanism: it knows nothing of vLLM, transformers or speculators.

`model` says what a patch, an adapter and a target are; `versions` finds what is installed; `contract` compares an
adapter's expectations with the real objects; `patcher` selects, checks, applies and undoes; `hooks` is the only file
that touches wrapt's import hooks.
"""
