"""Lengths of time as people type them: ``90``, ``90s``, ``10m``, ``2h``, ``1d``."""

import re

from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _

__all__ = ["parse_seconds"]

_FACTORS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_seconds(text: str | None, option: str) -> float | None:
    """Seconds in a text, or None for None.

    Raises:
        UsageError: It is not a length of time; the message names the option.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if match is None:
        raise UsageError(_("{text!r} is not a length of time").format(text=text), where=option, hint=_("for example 90s, 10m or 2h"))
    return float(match[1]) * _FACTORS[match[2]]
