"""The run config: what the trainer reads. A person writes it as ``run:`` in the spec; the plan fills in what was left open.

`RunConfig` is read strictly (an unknown key is an error). `RunFile` is the resolved ``run.json`` in the job's folder:
every number that the spec left to be derived has a value there, so the trainer derives nothing.
Defaults are upstream nanochat's (karpathy/nanochat 92d63d4, ``scripts/base_train.py``) unless the docstring says otherwise.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "BudgetState", "CheckpointConfig", "DataConfig", "DataSource", "EvalConfig", "ModelConfig", "PretrainConfig",
    "RlConfig", "RunConfig", "RunFile", "SftConfig", "Stage", "TokenizerConfig", "TrackingConfig", "World",
]


class Stage(StrEnum):
    """One part of a job; the parts of one job run one after the other in the same processes."""

    DATA = "data"
    TOKENIZER = "tokenizer"
    PRETRAIN = "pretrain"
    SFT = "sft"
    RL = "rl"
    EVAL = "eval"
    REPORT = "report"


class DataSource(StrEnum):
    """Where training text comes from."""

    TOY = "toy"
    """Small stories, sums and questions that we generate from a seed; needs no network."""
    FOLDER = "folder"
    """Any folder of .txt, .md, .py, .jsonl or .parquet files."""
    CLIMBMIX = "climbmix"
    FINEWEB_EDU = "fineweb-edu"
    MANIFEST = "manifest"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)


PositiveInt = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class DataConfig(_Strict):
    """Training text and how it is packed into rows."""

    source: DataSource = DataSource.CLIMBMIX
    dir: str | None = Field(None, description="Folder of the text (source folder), or where shards are kept.")
    manifest: str | None = Field(None, description="File that lists URL, size and sha256 of each shard (source manifest).")
    shards: PositiveInt | None = Field(None, description="Training shards to use; derived from the tokens when left out.")
    mirrors: list[str] = Field(default_factory=list, description="URL prefixes tried in this order before the origin.")
    offline: bool = Field(False, description="Never touch the network; what is missing is an error that lists it.")
    packing: Literal["bestfit", "upstream"] = Field(
        "bestfit",
        description="bestfit: BOS-aligned, every document is trained on; upstream: nanochat's rule, which never reaches "
        "long documents (kept for comparison).",
    )
    tasks_dir: str | None = Field(
        None, description="Folder of the tasks' examples, TASK/SPLIT.parquet or .jsonl; default: tasks in data.dir."
    )
    toy_documents: PositiveInt = Field(6000, description="Documents that source toy generates.")


class TokenizerConfig(_Strict):
    """Byte-pair tokenizer, trained by rustbpe and run by tiktoken."""

    vocab_size: Annotated[int, Field(ge=265, le=1_000_000)] = Field(
        32_768, description="Including 9 special tokens; at least 256 bytes + 9."
    )
    max_chars: PositiveInt = Field(2_000_000_000, description="Characters that training reads.")
    doc_cap: PositiveInt = Field(10_000, description="Characters read of one document.")


class ModelConfig(_Strict):
    """Shape of the transformer. `depth` is the one dial; the rest follows."""

    depth: Annotated[int, Field(ge=1, le=128)] = 20
    aspect_ratio: PositiveInt = Field(64, description="Width = depth x aspect_ratio, rounded up to whole heads.")
    head_dim: PositiveInt = 128
    sequence_len: Annotated[int, Field(ge=2)] = Field(2048, description="Tokens in a row.")
    window_pattern: Annotated[str, Field(pattern=r"^(auto|[SL]+)$")] = Field(
        "auto",
        description="S short window, L full; tiled over the layers, the last is always L. auto: SSSL where the "
        "attention kernel gains from windows, else L.",
    )


class PretrainConfig(_Strict):
    """Pretraining. Fields that are null are derived by the plan and have values in run.json."""

    device_batch: PositiveInt = Field(32, description="Sequences one rank does in one forward/backward.")
    tokens_per_step: PositiveInt | None = Field(None, description="Global batch in tokens of one optimiser update.")
    steps: PositiveInt | None = Field(None, description="Optimiser updates; overrides the ratio and target_flops.")
    target_flops: Annotated[float, Field(gt=0, le=1e30)] | None = None
    target_param_data_ratio: Annotated[float, Field(gt=0, le=1e6)] = Field(12.0, description="Tokens per scaling parameter.")
    embedding_lr: Annotated[float, Field(ge=0)] = 0.3
    unembedding_lr: Annotated[float, Field(ge=0)] = 0.008
    matrix_lr: Annotated[float, Field(ge=0)] = 0.02
    scalar_lr: Annotated[float, Field(ge=0)] = 0.5
    weight_decay: Annotated[float, Field(ge=0)] = 0.28
    warmup_steps: Annotated[int, Field(ge=0)] = 40
    warmdown_frac: Fraction = 0.65
    final_lr_frac: Fraction = 0.05
    eval_every: Annotated[int, Field(ge=0)] = Field(250, description="Steps between validation runs; 0 = only at both ends.")
    eval_tokens: PositiveInt = Field(80 * 524_288, description="Validation tokens of one evaluation, at most.")
    sample_every: Annotated[int, Field(ge=0)] = Field(2000, description="Steps between samples; 0 = only at the end.")
    stop_at_step: PositiveInt | None = Field(
        None, description="Leave (0, resumable) after this step; the horizon and schedule stay as they are."
    )
    max_session_s: PositiveInt | None = Field(None, description="Leave (0, resumable) after this many seconds of wall clock.")
    batch_lr_scale: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Factor on all learning rates for the batch size, sqrt(B/2^19); derived."
    )
    weight_decay_scaled: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Muon weight decay after scaling to batch and horizon; derived."
    )


class SftConfig(_Strict):
    """Supervised fine-tuning on conversations."""

    data: list[str] = Field(
        default_factory=lambda: ["auto"],
        description="Task names (smoltalk, mmlu, gsm8k, spelling, toy) or paths of .jsonl files of conversations; "
        "auto: what fits the data source.",
    )
    device_batch: PositiveInt | None = Field(None, description="Default: as in pretraining.")
    tokens_per_step: PositiveInt | None = Field(None, description="Default: as in pretraining.")
    steps: PositiveInt | None = Field(None, description="Default: one epoch.")
    init_lr_frac: Annotated[float, Field(gt=0)] = 0.8
    warmup_frac: Fraction = 0.0
    warmdown_frac: Fraction = 0.5
    final_lr_frac: Fraction = 0.0
    eval_every: Annotated[int, Field(ge=0)] = 200
    eval_tokens: PositiveInt = 40 * 524_288
    on_bad_record: Literal["refuse", "skip"] = "refuse"


class RlConfig(_Strict):
    """Reinforcement learning: REINFORCE with a mean baseline, in GRPO's manner."""

    task: str = Field("gsm8k", description="Task name, or an entry point module:function that gives examples and rewards.")
    steps: PositiveInt | None = Field(None, description="Default: one epoch.")
    examples_per_step: PositiveInt = 16
    samples: Annotated[int, Field(ge=2)] = Field(16, description="Samples drawn for each example.")
    device_batch: PositiveInt = 8
    max_new_tokens: PositiveInt = 256
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 50
    init_lr_frac: Annotated[float, Field(gt=0)] = 0.05
    embedding_lr: Annotated[float, Field(ge=0)] = 0.2
    unembedding_lr: Annotated[float, Field(ge=0)] = 0.004
    matrix_lr: Annotated[float, Field(ge=0)] = 0.02
    eval_every: Annotated[int, Field(ge=0)] = 60
    eval_examples: PositiveInt = 400
    pass_k: PositiveInt = 8
    reward_timeout_s: Annotated[float, Field(gt=0)] = Field(10.0, description="Seconds that the reward of one answer may take.")


class EvalConfig(_Strict):
    """What the stage ``eval`` measures."""

    tasks: list[str] = Field(
        default_factory=lambda: ["auto"],
        description="bpb, core, chatcore, samples, toy, or a task's name; auto: what fits the stage before and the data.",
    )
    max_per_task: PositiveInt | None = Field(None, description="Examples per task, at most; null = all.")
    device_batch: PositiveInt | None = Field(None, description="Default: as in pretraining.")
    max_new_tokens: PositiveInt = 512
    bundle: str | None = Field(None, description="Folder or zip of the CORE evaluation bundle.")


class CheckpointConfig(_Strict):
    """When checkpoints are written and which are kept. A checkpoint is always written at the end and before evaluations."""

    every_steps: PositiveInt | None = None
    every_minutes: Annotated[float, Field(gt=0)] | None = Field(30.0, description="Upstream saves only at the end.")
    keep_last: PositiveInt = 2
    keep_best: bool = True


class TrackingConfig(_Strict):
    """Experiment tracker. Keys come from the environment or a Kubernetes secret, never from here."""

    logger: Literal["swanlab", "wandb", "none"] = "none"
    project: str = "nanochat"
    workspace: str | None = None
    mode: Literal["cloud", "local", "offline"] = "cloud"
    every_steps: PositiveInt = Field(10, description="Steps between points sent to the tracker.")


class RunConfig(_Strict):
    """Everything the trainer needs to know that does not depend on where it runs."""

    stages: Annotated[list[Stage], Field(min_length=1)] = Field(
        default_factory=lambda: [Stage.PRETRAIN, Stage.EVAL], description="Run in this order; a stage may come again."
    )
    data: DataConfig = Field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    pretrain: PretrainConfig = Field(default_factory=PretrainConfig)
    sft: SftConfig = Field(default_factory=SftConfig)
    rl: RlConfig = Field(default_factory=RlConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    resume: Annotated[str, Field(pattern=r"^(auto|never|[a-z][a-z0-9-]*@(latest|[0-9]+))$")] = Field(
        "auto", description="auto: newest complete checkpoint of this job; never; or JOB@STEP of another job."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Compute type; auto: bfloat16 on NPU and recent CUDA, float32 on CPU."
    )
    attention: Literal["auto", "sdpa", "fused", "blocks"] = Field(
        "auto", description="Kernel for sliding windows; auto: the device's fused one, blocks on CPU. sdpa: torch's own, with a mask."
    )
    compile: bool = Field(False, description="torch.compile; upstream always compiles (a minute of start-up on CPU).")
    tracking: TrackingConfig = Field(default_factory=TrackingConfig)


class World(_Strict):
    """How many processes take part. One rank per NPU; on CPU one rank per simulated NPU."""

    nodes: PositiveInt = 1
    ranks_per_node: PositiveInt = 1
    device: Literal["npu", "cuda", "cpu", "auto"] = "auto"

    @property
    def size(self) -> int:
        """World size: ranks over all nodes."""
        return self.nodes * self.ranks_per_node


class BudgetState(_Strict):
    """What the trainer must not exceed, in wall-clock terms; attempts of one job share it."""

    deadline_s: float | None = Field(None, description="Unix time at which the job has to be gone.")
    max_run_s: Annotated[float, Field(gt=0)] | None = Field(None, description="Seconds that all attempts together may take.")
    spent_s: Annotated[float, Field(ge=0)] = Field(0.0, description="Seconds that earlier attempts took.")
    on_limit: Literal["refuse", "checkpoint_and_stop"] = "checkpoint_and_stop"


class RunFile(BaseModel):
    """Content of ``run.json``. Read leniently: a newer submitter may add keys that an older image does not know."""

    model_config = ConfigDict(extra="ignore")

    schema_version: Literal[1] = 1
    job: str
    submission_id: str = ""
    spec_sha256: str = ""
    run: RunConfig
    world: World = Field(default_factory=World)
    attempt: Annotated[int, Field(ge=0)] = 0
    retries_failures: Annotated[int, Field(ge=0)] = 2
    grace_period_s: PositiveInt = 300
    start_timeout_s: PositiveInt = 600
    silence_timeout_s: Annotated[int, Field(ge=0)] = Field(
        600, description="Seconds after which a rank that neither works nor waits for others is taken for lost; 0 = never."
    )
    budget: BudgetState = Field(default_factory=BudgetState)
    notes: dict[str, Any] = Field(default_factory=dict, description="Facts for people and reports; the trainer copies them.")
