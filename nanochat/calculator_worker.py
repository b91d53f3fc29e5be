"""The calculator's other half: a process of its own with little memory and time, that answers one line with one line.

Started as a plain file (``python -I -S calculator_worker.py``), it imports nothing but the standard library. Expressions are
parsed and walked by us, never given to ``eval``: numbers, + - * / and brackets, or ``"text".count("part")``.
"""

import ast
import json
import operator
import resource
import sys
from collections.abc import Callable
from typing import cast

MEMORY_BYTES = 256 * 1024 * 1024
MAX_CHARS = 1_000
MAX_DEPTH = 50
MAX_DIGITS = 100

_BINARY: dict[type[ast.operator], Callable[[int | float, int | float], int | float]] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_UNARY: dict[type[ast.unaryop], Callable[[int | float], int | float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


class _RefusedError(ValueError):
    """The expression is not one that the calculator knows."""


def _number(node: ast.expr, depth: int = 0) -> int | float:
    if depth > MAX_DEPTH:
        raise _RefusedError("nested too deeply")
    value: int | float
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = cast(int | float, node.value)
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        value = _BINARY[type(node.op)](_number(node.left, depth + 1), _number(node.right, depth + 1))
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        value = _UNARY[type(node.op)](_number(node.operand, depth + 1))
    else:
        raise _RefusedError("not arithmetic")
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        raise _RefusedError("too large")
    return value


def _count(node: ast.expr) -> int | None:
    """The value of "text".count("part"), or None where it is something else."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "count"):
        return None
    owner, arguments = node.func.value, node.args
    if node.keywords or len(arguments) != 1:
        return None
    if not all(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in (owner, arguments[0])):
        return None
    return owner.value.count(arguments[0].value)  # type: ignore[attr-defined]


def evaluate(expression: str) -> str | None:
    """The result as text, or None where the expression is not one that the calculator knows."""
    if len(expression) > MAX_CHARS:
        return None
    try:
        node = ast.parse(expression.strip(), mode="eval").body
        counted = _count(node)
        if counted is not None:
            return str(counted)
        return str(_number(ast.parse(expression.replace(",", "").strip(), mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def main() -> None:
    """Answers until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(evaluate(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
