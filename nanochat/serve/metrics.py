"""``/metrics`` in Prometheus' text form."""

from collections.abc import Iterator

from nanochat.serve.batcher import Batcher

__all__ = ["render_metrics"]

_COUNTERS = {
    "requests": ("requests_total", "Answers asked for."),
    "finished": ("finished_total", "Answers written to their end."),
    "cancelled": ("cancelled_total", "Answers stopped because the client went away or had enough."),
    "rejected": ("rejected_total", "Answers refused because the queue was full."),
    "failed": ("failed_total", "Answers that broke off."),
    "prompt_tokens": ("prompt_tokens_total", "Prompt tokens read."),
    "generated_tokens": ("generated_tokens_total", "Tokens written."),
    "steps": ("steps_total", "Steps of the batch."),
    "busy_s": ("busy_seconds_total", "Seconds in which the model worked."),
}


def render_metrics(batcher: Batcher) -> str:
    """All metrics as text."""
    return "".join(_lines(batcher))


def _lines(batcher: Batcher) -> Iterator[str]:
    for attribute, (name, text) in _COUNTERS.items():
        yield f"# HELP nanochat_{name} {text}\n# TYPE nanochat_{name} counter\nnanochat_{name} {getattr(batcher.counters, attribute)}\n"
    for name, value, text in (("active", batcher.active, "Answers being written."), ("waiting", batcher.waiting, "Requests in the queue.")):
        yield f"# HELP nanochat_{name} {text}\n# TYPE nanochat_{name} gauge\nnanochat_{name} {value}\n"
    times = sorted(batcher.counters.first_token_s)
    yield "# HELP nanochat_first_token_seconds Time to the first token; quantiles of the last thousand answers.\n# TYPE nanochat_first_token_seconds summary\n"
    for quantile in (0.5, 0.9, 0.99):
        at = times[min(len(times) - 1, int(quantile * len(times)))] if times else "NaN"
        yield f'nanochat_first_token_seconds{{quantile="{quantile}"}} {at}\n'
    yield f"nanochat_first_token_seconds_count {batcher.counters.first_tokens}\nnanochat_first_token_seconds_sum {batcher.counters.first_token_total_s}\n"
