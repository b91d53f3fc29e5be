"""Names that people bring along: flags of upstream nanochat and of its Ascend port, and what they are called here."""

__all__ = ["INIT_VARIABLES", "UPSTREAM_FLAGS"]

UPSTREAM_FLAGS: dict[str, str] = {
    "depth": "run.model.depth",
    "aspect_ratio": "run.model.aspect_ratio",
    "head_dim": "run.model.head_dim",
    "max_seq_len": "run.model.sequence_len",
    "window_pattern": "run.model.window_pattern",
    "num_iterations": "run.pretrain.steps",
    "target_flops": "run.pretrain.target_flops",
    "target_param_data_ratio": "run.pretrain.target_param_data_ratio",
    "device_batch_size": "run.pretrain.device_batch",
    "total_batch_size": "run.pretrain.tokens_per_step",
    "embedding_lr": "run.pretrain.embedding_lr",
    "unembedding_lr": "run.pretrain.unembedding_lr",
    "matrix_lr": "run.pretrain.matrix_lr",
    "scalar_lr": "run.pretrain.scalar_lr",
    "weight_decay": "run.pretrain.weight_decay",
    "warmup_steps": "run.pretrain.warmup_steps",
    "warmdown_ratio": "run.pretrain.warmdown_frac",
    "final_lr_frac": "run.pretrain.final_lr_frac",
    "resume_from_step": "run.resume",
    "eval_every": "run.pretrain.eval_every",
    "eval_tokens": "run.pretrain.eval_tokens",
    "sample_every": "run.pretrain.sample_every",
    "save_every": "run.checkpoint.every_steps",
    "core_metric_max_per_task": "run.eval.max_per_task",
    "model_tag": "name",
    "run": "name",
    "vocab_size": "run.tokenizer.vocab_size",
    "max_chars": "run.tokenizer.max_chars",
    "doc_cap": "run.tokenizer.doc_cap",
    "device_type": "backend",
    "nproc_per_node": "resources.npus_per_node",
    "nnodes": "resources.nodes",
    "enforce_eager": "run.compile",
    "num_npus": "resources.npus_per_node",
    "wandb": "run.tracking.logger",
}
"""Flag of karpathy/nanochat 92d63d4 (``scripts/base_train.py``, ``tok_train.py``) or of leideng/nanochat-ascend ee84087 -> spec field."""

INIT_VARIABLES: dict[str, str] = {
    "NNODES": "resources.nodes",
    "NNPU": "resources.npus_per_node",
    "NPROC_PER_NODE": "resources.npus_per_node",
    "DEPTH": "run.model.depth",
    "DEVICE_BATCH_SIZE": "run.pretrain.device_batch",
    "TOTAL_BATCH_SIZE": "run.pretrain.tokens_per_step",
    "NUM_ITERATIONS": "run.pretrain.steps",
    "MAX_SEQ_LEN": "run.model.sequence_len",
    "NANOCHAT_LOGGER": "run.tracking.logger",
    "SWANLAB_WORKSPACE": "run.tracking.workspace",
}
"""Variables of the shell scripts that people come from -> field; `init` writes them into the new spec, later ones win."""
