"""Reading what one may, side by side: what rights do not allow is left out and named."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from nanochat_npu.errors import ClusterForbidden, PrerequisiteMissing
from nanochat_npu.kube_errors import NotFoundError

__all__ = ["Asking", "Promise"]

T = TypeVar("T")


class Asking:
    """Sends questions at once and takes the answers in any order.

    Attributes:
        unread: What may not be read, in words, in the order in which the answers were taken.
    """

    def __init__(self) -> None:
        self.unread: list[str] = []

    def start(self, what: str, question: Callable[[], T], *, name_missing: bool = False) -> "Promise[T]":
        """Ask in the background; call the result for the answer.

        Args:
            what: What is asked for, in words.
            question: Asks; run by a thread of its own.
            name_missing: Also name what this server does not know at all; else that is silently no answer.
        """
        return Promise(self.unread, what, question, name_missing=name_missing)


class Promise(Generic[T]):
    """An answer that is on its way."""

    def __init__(self, unread: list[str], what: str, question: Callable[[], T], *, name_missing: bool) -> None:
        self._unread, self._what, self._question, self._name_missing = unread, what, question, name_missing
        self._future: Future[T] = Future()
        # A daemon and no pool: Ctrl-C need not wait for a server that does not answer.
        threading.Thread(target=self._run, name=f"ask {what}", daemon=True).start()

    def __call__(self) -> T | None:
        """The answer; None where one may not read it or there is none.

        Raises:
            ClusterError: Anything else that went wrong.
        """
        try:
            return self._future.result()
        except NotFoundError:
            return None
        except ClusterForbidden:
            self._note(self._what)
        except PrerequisiteMissing as error:
            if self._name_missing:
                self._note(f"{self._what} ({error.message})")
        return None

    def _note(self, text: str) -> None:
        if text not in self._unread:
            self._unread.append(text)

    def _run(self) -> None:
        try:
            self._future.set_result(self._question())
        except BaseException as error:
            self._future.set_exception(error)  # raised where the answer is taken
