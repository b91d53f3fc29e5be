"""Questions that are asked side by side: answers in any order, what is forbidden named once, everything else raised where the answer is taken."""

import threading

import pytest

from nanochat_npu.cluster.asking import Asking
from nanochat_npu.errors import ClusterForbidden, ClusterUnreachable, PrerequisiteMissing
from nanochat_npu.kube_errors import NotFoundError


def raising(error: Exception) -> int:
    raise error


def test_questions_are_on_their_way_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=20)  # broken, and so an error, if they came one after the other
    asking = Asking()
    promises = [asking.start(f"q{number}", lambda number=number: (together.wait(), number)[1]) for number in range(3)]  # type: ignore[misc]
    assert [promise() for promise in promises] == [0, 1, 2]
    assert asking.unread == []


def test_what_is_forbidden_is_named_once_and_what_is_not_there_is_no_answer() -> None:
    asking = Asking()
    forbidden = asking.start("nodes", lambda: raising(ClusterForbidden("no")))
    missing = asking.start("the queue", lambda: raising(NotFoundError("gone")))
    unknown = asking.start("groups", lambda: raising(PrerequisiteMissing("no such kind")))
    assert [forbidden(), forbidden(), missing(), unknown()] == [None, None, None, None]
    assert asking.unread == ["nodes"]


def test_what_the_server_does_not_know_is_named_where_that_is_wanted() -> None:
    asking = Asking()
    assert asking.start("queues", lambda: raising(PrerequisiteMissing("Volcano is not installed")), name_missing=True)() is None
    assert asking.unread == ["queues (Volcano is not installed)"]


def test_any_other_trouble_is_raised_where_the_answer_is_taken() -> None:
    promise = Asking().start("nodes", lambda: raising(ClusterUnreachable("the server is away")))
    with pytest.raises(ClusterUnreachable, match="away"):
        promise()
