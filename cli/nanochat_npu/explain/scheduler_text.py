"""Takes the scheduler's and the API server's sentences apart.

Volcano writes the gang's state in front ("2/2 tasks in gang unschedulable: …") and hides the cause behind "Origin reason is
POD: "; per-node reasons follow as "0/4 nodes are unavailable: 3 X, 1 Y.". Creation errors hold Go structs, of which only the
server's own Message says something.
"""

import re
from dataclasses import dataclass

__all__ = ["NodeReasons", "is_gang_text", "node_reasons", "origin_reason", "server_message"]

_NODES = re.compile(r"(?P<fit>\d+)/(?P<all>\d+) nodes are (?:un)?available: ?(?P<list>.*)", re.DOTALL)
_COUNTED = re.compile(r"(?:^|,\s*)(?P<n>\d+)\s+(?P<why>(?:(?!,\s*\d+\s+[a-zA-Z(]).)+)", re.DOTALL)
_GO_MESSAGE = re.compile(r'Message:"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class NodeReasons:
    """Why nodes do not take a pod: how many there are, and reason → number of nodes."""

    nodes: int
    reasons: dict[str, int]


def is_gang_text(text: str) -> bool:
    """True if the sentence only says that the gang is not complete."""
    return "in gang unschedulable" in text or text.startswith("pod group is not ready")


def origin_reason(text: str) -> str:
    """What stands behind "Origin reason is POD: ", or the text itself where it is no gang sentence, else ""."""
    _before, mark, rest = text.partition("Origin reason is ")
    if mark:
        _pod, colon, reason = rest.partition(": ")
        return " ".join((reason if colon else rest).split())
    return "" if is_gang_text(text) else " ".join(text.split())


def node_reasons(text: str) -> NodeReasons | None:
    """The counted reasons of "0/4 nodes are unavailable: 3 A, 1 B.", or None if the text has none."""
    match = _NODES.search(text)
    if match is None:
        return None
    reasons: dict[str, int] = {}
    # Kubernetes' own scheduler adds whether evicting others would help, counted over the same nodes.
    listed = match["list"].partition(" preemption: ")[0]
    for part in _COUNTED.finditer(listed.strip().rstrip(".")):
        why = " ".join(part["why"].split()).rstrip(".,")
        reasons[why] = reasons.get(why, 0) + int(part["n"])
    return NodeReasons(int(match["all"]), reasons)


def server_message(text: str) -> str:
    """The server's own sentence in an event text: out of a Go struct dump, or the text as it is."""
    match = _GO_MESSAGE.search(text)
    if match is None:
        return text
    return match.group(1).replace('\\"', '"').replace("\\\\", "\\")
