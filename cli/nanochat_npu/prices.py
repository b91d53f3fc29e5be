"""Prices that do not stand in the spec: ``--price 3.0CNY``, or a table of prices by NPU (``--prices FILE``)."""

import datetime
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nanochat_npu.errors import Problem, SpecError, SpecFieldError, UsageError
from nanochat_npu.i18n import _, counted
from nanochat_npu.load import load_spec
from nanochat_npu.spec import PriceConfig
from nanochat_npu.spec.currencies import CURRENCIES
from nanochat_npu.spec.findings import nearest_currency
from nanochat_npu.yaml_source import MAX_BYTES, YamlSource, parse_yaml

__all__ = ["PUBLIC", "price_from_flag", "price_from_table", "price_overrides", "priced"]

_FORM = "prices: [{npu: 910B3, per_npu_hour: 3.0, currency: CNY, source: ..., date: 2026-11-01}]"
"""How a price table is written."""
PUBLIC = "public"
"""Name of the table that comes with the program."""
_FLAG = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]{3})\s*")
_AMOUNT = re.compile(r"[0-9]*\.?[0-9]+")


def priced(source: str, overrides: Sequence[str], price: str | None, table: str | None) -> list[str]:
    """``--set`` values for what ``--price`` and ``--prices`` say; none where neither was given.

    Args:
        source: The spec, whose NPU type a table is searched for.
        overrides: ``--set`` values that were given beside them.
        price: An amount with its currency.
        table: A price table.

    Raises:
        UsageError: They are wrong, or both were given.
        SpecError: The table or the spec is wrong.
    """
    if price is not None and table is not None:
        raise UsageError(_("{one} and {two} cannot go together").format(one="--price", two="--prices"))
    if price is None and table is None:
        return []
    if source.endswith(".json"):
        from nanochat_npu import planfile

        planfile.refuse_changes(source)
    today = datetime.date.today()
    # A budget is not held here: it may need the very price that is given now.
    before = [*overrides, "budget.max_total=null"]
    if price is None:
        spec = load_spec(source, before).spec
        found = price_from_table(table or "", spec.resources.npu.value if spec.resources.npu else None, today)
        _same_currency(spec.price, found, "--prices")
        return price_overrides(found)
    found = price_from_flag(price, today)
    with suppress(SpecError):  # it may be the price that is missing; what else is wrong is said when the spec is read with it
        _same_currency(load_spec(source, before).spec.price, found, "--price")
    return price_overrides(found)


def _same_currency(before: PriceConfig | None, now: PriceConfig, where: str) -> None:
    """Refuses an NPU price in another currency than the spec's prices of storage and electricity, which would then change theirs."""
    if before is None or before.currency == now.currency:
        return
    beside = [name for name in ("storage_gb_month", "per_kwh") if getattr(before, name) is not None and getattr(now, name) is None]
    if beside:
        raise UsageError(
            _("{now} beside {names} in {before}: nothing is converted").format(now=now.currency, names=", ".join(f"price.{name}" for name in beside), before=before.currency),
            where=where, hint=_("give the price in {before}, or leave the others out: {settings}").format(before=before.currency, settings=" ".join(f"--set price.{name}=null" for name in beside)),
        )


def price_from_flag(text: str, today: datetime.date) -> PriceConfig:
    """The price in ``3.0CNY``.

    Raises:
        UsageError: It is no amount with a currency.
    """
    found = _FLAG.fullmatch(text)
    currency = found.group(2).upper() if found else ""
    if found is None or currency not in CURRENCIES:
        amount = _AMOUNT.search(text)
        rest = _AMOUNT.sub("", text, count=1)
        close = nearest_currency(rest) if amount and "-" not in text and not any(letter.isdigit() for letter in rest) else None
        hint = _("did you mean {name}?").format(name=f"{amount.group()}{close}") if amount and close else _("an amount and a currency, for one NPU and hour: --price 3.0CNY")
        raise UsageError(_("'{text}' is no price").format(text=text), where="--price", hint=hint)
    return PriceConfig(per_npu_hour=float(found.group(1)), currency=currency, source="--price", date=today)


def price_from_table(name: str, npu: str | None, today: datetime.date) -> PriceConfig:
    """The newest price of an NPU type in a table.

    Args:
        name: A file, or ``public`` for the one that comes with the program.
        npu: NPU type of the spec.
        today: Prices from later than this are errors.

    Raises:
        UsageError: There is no such file, or no price for this NPU in it.
        SpecFieldError: Entries are wrong; all of them are listed.
    """
    path = Path(__file__).parent / "data" / "prices.yaml" if name == PUBLIC else Path(name)
    try:
        content = path.read_bytes()[: MAX_BYTES + 1]
    except OSError as error:
        raise UsageError(_("cannot read '{name}': {reason}").format(name=name, reason=error.strerror), where="--prices", hint=_("a file, or: --prices public")) from error
    source = parse_yaml(content, name if name == PUBLIC else str(path), empty_hint=_FORM)
    entries = _entries(source, today)
    fitting = [price for kind, price in entries if kind == npu]
    if not fitting:
        kinds = ", ".join(sorted({kind for kind, _price in entries})) or _("none")
        raise UsageError(_("no price for {npu} in {name}").format(npu=npu or _("a job without NPUs"), name=name), where="--prices", hint=_("it has: {kinds}").format(kinds=kinds))
    return max(fitting, key=lambda price: price.date)


def _entries(source: YamlSource, today: datetime.date) -> list[tuple[str, PriceConfig]]:
    listed = source.data.get("prices")
    if not isinstance(listed, list) or not listed:
        problem = source.problem(_("a price table has a list 'prices'"), ("prices",), hint=_FORM)
        raise SpecFieldError(problem.message, where=source.name, hint=problem.hint, problems=[problem])
    found, problems = [], []
    for number, entry in enumerate(listed):
        price, wrong = _entry(source, number, entry, today)
        problems += wrong
        if price is not None:
            found.append((str(entry["npu"]), price))
    if problems:
        raise SpecFieldError(counted(len(problems), _("{n} problem in the price table"), _("{n} problems in the price table")), where=source.name, problems=problems)
    return found


def _entry(source: YamlSource, number: int, entry: Any, today: datetime.date) -> tuple[PriceConfig | None, list[Problem]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("npu"), str):
        return None, [source.problem(_("an entry needs npu, per_npu_hour, currency, source and date"), ("prices", number))]
    try:
        price = PriceConfig.model_validate({key: value for key, value in entry.items() if key != "npu"}, strict=False)
    except ValidationError as error:
        return None, [source.problem(str(e["msg"]), ("prices", number, *e["loc"])) for e in error.errors()]
    problems = []
    if price.currency not in CURRENCIES:
        problems.append(source.problem(_("{code} is no currency that we know").format(code=price.currency), ("prices", number, "currency")))
    if price.date > today:
        problems.append(source.problem(_("{date} has not come yet; today is {today}").format(date=price.date, today=today), ("prices", number, "date")))
    return (None if problems else price), problems


def price_overrides(price: PriceConfig) -> list[str]:
    """The price as ``--set`` values, so that it goes the way of every other value; what it does not say stays as the spec has it, but for bounds of another price."""
    values = {"low": None, "high": None, **price.model_dump(mode="json", exclude_none=True, exclude_unset=True)}
    return [f"price.{key}={_quoted(value)}" for key, value in values.items()]


def _quoted(value: object) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else "null" if value is None else str(value)
