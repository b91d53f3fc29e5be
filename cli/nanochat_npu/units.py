"""Numbers as a person reads them: durations, counts, sizes. One spelling everywhere; exact numbers are in ``-o json``."""

__all__ = ["count", "duration", "number", "size"]


def duration(seconds: float) -> str:
    """Seconds in the two largest units: ``8 s``, ``3 min 20 s``, ``2 h 05 min``, ``3 d 4 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def number(value: float) -> str:
    """A measured value with about four significant digits."""
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    if magnitude >= 100:
        return f"{value:.1f}"
    return f"{value:.4f}" if magnitude < 10 else f"{value:.2f}"


def count(value: float) -> str:
    """How many: ``552,960``, ``12.3 M``, ``5.84 B``."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes in decimal units, as disks and networks are sold: ``3.2 MB``."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f} B"
