"""Hidden states out of a running vLLM engine; no version facts in here.

Driver side: `generator` (the public class), `prompts` (input checks), `session` (vLLM's EngineCore and its workers),
`start_method` (fork or spawn).
Worker side: `worker_extension` (what vLLM mixes into its worker), `capture` (hooks and rows), `decoder_layers`
(where the layers are), `residual_stream` (what a layer's output means), `batch_order` (whose rows are whose).
`transfer` carries rows from one side to the other.
"""
