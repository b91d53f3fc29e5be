"""Reads the data in a pickle without executing it.

A pickle is a small program that can call anything. Here its opcodes are walked by a machine that knows data only: numbers,
text, bytes, lists, tuples, dictionaries, and objects of classes that the caller expects, which become plain dictionaries of
their state. Whatever else it meets is refused by name before anything has happened. torch's own files are not read here but
with ``weights_only=True``.
"""

import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanochat.errors import BadData

__all__ = ["Instance", "read_pickle"]

MAX_BYTES = 256 * 1024 * 1024


@dataclass
class Instance:
    """An object of an expected class: its name and its state."""

    kind: str
    state: Any = None


@dataclass(frozen=True)
class _Class:
    name: str


class _Mark:
    """Where a list of arguments begins on the stack."""


@dataclass
class _Machine:
    allowed: Collection[str]
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def since_mark(self) -> list[Any]:
        at = max(i for i, item in enumerate(self.stack) if isinstance(item, _Mark))
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def look_up(self, module: str, name: str) -> _Class:
        full = f"{module}.{name}"
        if full not in self.allowed:
            raise BadData(f"it wants to load {full}, which is not data")
        return _Class(full)


def read_pickle(path: Path, allowed: Collection[str]) -> Any:
    """What a pickle holds, as plain data.

    Args:
        path: The file.
        allowed: Full names of classes whose instances may occur; they become `Instance`.

    Raises:
        BadData: The file is unreadable or damaged, or holds anything but data.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadData(f"more than {MAX_BYTES:,} bytes", where=str(path))
        return _run(path.read_bytes(), allowed)
    except BadData as error:
        raise BadData(f"the pickle is refused: {error.message}", where=str(path)) from error
    except OSError as error:
        raise BadData(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise BadData(f"not a readable pickle: {error}", where=str(path)) from error


def _run(content: bytes, allowed: Collection[str]) -> Any:
    machine = _Machine(allowed)
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "STOP":
            return machine.stack.pop()
        if opcode.name in _PUSHED:
            machine.stack.append(argument)
        elif opcode.name in _DONE:
            _DONE[opcode.name](machine, argument)
        elif opcode.name not in ("PROTO", "FRAME"):
            raise BadData(f"it does {opcode.name}, which data does not need")
    raise BadData("it ends too early")


_PUSHED = frozenset((
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "INT", "LONG", "UNICODE", "FLOAT",
))
"""Opcodes that put their argument on the stack."""


def _set_items(machine: _Machine, _: Any) -> None:
    items = machine.since_mark()
    machine.stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _set_item(machine: _Machine, _: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.stack[-1][key] = value


def _append(machine: _Machine, _: Any) -> None:
    value = machine.stack.pop()
    machine.stack[-1].append(value)


def _appends(machine: _Machine, _: Any) -> None:
    items = machine.since_mark()
    machine.stack[-1].extend(items)


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def make(machine: _Machine, _: Any) -> None:
        items = tuple(machine.stack[len(machine.stack) - count :])
        del machine.stack[len(machine.stack) - count :]
        machine.stack.append(items)

    return make


def _global(machine: _Machine, argument: Any) -> None:
    module, _, name = argument.partition(" ")
    machine.stack.append(machine.look_up(module, name))


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(machine.look_up(module, name))


def _new(machine: _Machine, _: Any) -> None:
    arguments, kind = machine.stack.pop(), machine.stack.pop()
    if not isinstance(kind, _Class) or arguments:
        raise BadData("it makes an object with arguments")
    machine.stack.append(Instance(kind.name))


def _build(machine: _Machine, _: Any) -> None:
    state = machine.stack.pop()
    if not isinstance(machine.stack[-1], Instance):
        raise BadData("it sets the state of something that is no object")
    machine.stack[-1].state = state


def _memoize(machine: _Machine, _: Any) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _put(machine: _Machine, argument: Any) -> None:
    machine.memo[argument] = machine.stack[-1]


_DONE: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": lambda machine, _: machine.stack.append(_Mark()),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "TUPLE1": _tuple_of(1), "TUPLE2": _tuple_of(2), "TUPLE3": _tuple_of(3),
    "SETITEM": _set_item, "SETITEMS": _set_items, "APPEND": _append, "APPENDS": _appends,
    "GLOBAL": _global, "STACK_GLOBAL": _stack_global, "NEWOBJ": _new, "BUILD": _build,
    "MEMOIZE": _memoize, "BINPUT": _put, "LONG_BINPUT": _put,
    "BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
    "LONG_BINGET": lambda machine, argument: machine.stack.append(machine.memo[argument]),
}
"""Opcodes that build data."""
