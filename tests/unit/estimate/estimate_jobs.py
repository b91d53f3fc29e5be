"""Jobs to estimate, built without a spec."""

from datetime import date
from typing import Any

from nanochat.contract import ModelShape, RunConfig, horizon
from nanochat_npu.estimate import Inputs, Price, Stack

PRICE = Price(3.0, "CNY", "our contract", date(2026, 11, 1))
BAND = Price(3.0, "CNY", "list", date(2026, 11, 1), low=2.3, high=5.6)


def job(depth: int = 20, npus: int = 8, batch: int = 8, *, nodes: int = 1, ratio: float = 12.0, chip: str = "910B3", **more: Any) -> Inputs:
    """A pretraining; `more` takes stages, pretrain={...}, checkpoint={...}, data={...}, eval={...}, and fields of `Inputs`."""
    run = RunConfig.model_validate({
        "stages": more.pop("stages", ["pretrain"]),
        "model": {"depth": depth, "window_pattern": more.pop("pattern", "L")},
        "pretrain": {"device_batch": batch, "target_param_data_ratio": ratio, **more.pop("pretrain", {})},
        "checkpoint": more.pop("checkpoint", {}),
        "data": more.pop("data", {}),
        "eval": more.pop("eval", {}),
        "tokenizer": more.pop("tokenizer", {}),
    })
    shape = ModelShape.of(run.model, run.tokenizer.vocab_size)
    reference = ModelShape.of(run.model, run.tokenizer.vocab_size, depth=12)
    plan = horizon(
        shape, reference, world_size=nodes * npus, device_batch=batch, ratio=ratio, weight_decay=0.28,
        tokens_per_step=run.pretrain.tokens_per_step, steps=run.pretrain.steps,
    )
    fields: dict[str, Any] = {"price": PRICE, "billed_per_node": npus, "stack": Stack.EAGER} | more
    return Inputs(run=run, shape=shape, horizon=plan, nodes=nodes, ranks_per_node=npus, chip=chip, **fields)
