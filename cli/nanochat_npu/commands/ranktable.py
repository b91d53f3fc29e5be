"""``ranktable``: make, check and show HCCL rank tables."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nanochat.contract.ranktable import Finding, RankTable, RankTableError, parse
from nanochat_npu import console
from nanochat_npu.errors import NanochatNpuError, Problem, SpecFieldError, UsageError
from nanochat_npu.i18n import _, counted
from nanochat_npu.options import OutputFormat, OutputOption, ToOption
from nanochat_npu.tables import Section, to_markdown, to_text
from nanochat_npu.writing import write_result
from nanochat_npu.yaml_source import YamlSource, parse_yaml

__all__ = ["app"]

MAX_FILE_BYTES = 64 * 1024 * 1024
"""65,536 ranks take 4.9 MB; anything far beyond is not a rank table."""

app = typer.Typer(add_completion=False, no_args_is_help=True, help=_("Make, check and show HCCL rank tables."))

TableArgument = Annotated[Path, typer.Argument(metavar="FILE", help=_("A rank table (hccl.json)."), show_default=False)]
InventoryArgument = Annotated[
    Path, typer.Argument(metavar="INVENTORY", help=_("YAML with servers: [{node, device_ips}], as in rank_table of a spec."), show_default=False)
]
WorldOption = Annotated[int | None, typer.Option("--world-size", min=1, help=_("Ranks that the job has."), show_default=False)]
SchemaOption = Annotated[str, typer.Option("--schema", metavar="1.0|1.2", help=_("1.0 for A2 (910B), 1.2 for A3."))]


@app.command()
def validate(file: TableArgument, world_size: WorldOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Check a rank table by every rule that HCCL has, and list all that is broken."""
    table = _load(file, world_size)
    summary = {"file": str(file), "servers": len(table.servers), "world_size": table.world_size, "version": table.version, "fingerprint": table.fingerprint()}
    if output is OutputFormat.JSON:
        console.json_data({**summary, "findings": []})
        return
    console.data(_("{file}: {servers} servers, {ranks} ranks, version {version}: no fault found").format(
        file=file, servers=len(table.servers), ranks=table.world_size, version=table.version
    ))
    console.say_next("ranktable", "show", str(file))


@app.command()
def show(file: TableArgument, output: OutputOption = OutputFormat.TEXT) -> None:
    """Show servers, NPUs, addresses and ranks of a rank table."""
    table = _load(file, None)
    rows = tuple(
        (str(device.rank_id), server.server_id, str(device.device_id), device.device_ip or "-", *([device.super_device_id] if table.version == "1.2" else []))
        for server in table.servers for device in server.devices
    )
    header = (_("rank"), _("server"), _("NPU"), _("address"), *([_("super device")] if table.version == "1.2" else []))
    section = Section("ranks", _("{ranks} ranks on {servers} servers").format(ranks=table.world_size, servers=len(table.servers)), header=header, table=rows)
    if output is OutputFormat.JSON:
        console.json_data({"fingerprint": table.fingerprint(), "world_size": table.world_size, "table": table.to_dict()})
    else:
        console.data(to_markdown([section]) if output is OutputFormat.MARKDOWN else to_text([section]))


@app.command()
def generate(inventory: InventoryArgument, to: ToOption = None, schema: SchemaOption = "1.0") -> None:
    """Make a rank table from an inventory of servers and the addresses of their NPUs."""
    if schema not in ("1.0", "1.2"):
        raise UsageError(_("{value} is no version of rank tables that we write").format(value=schema), where="--schema", hint=_("1.0 for A2 (910B), 1.2 for A3"))
    source = parse_yaml(_read(inventory), str(inventory), empty_hint=_("write servers: [{{node: NAME, device_ips: [ADDRESS, …]}}, …]").format())
    nodes = _servers(source)
    try:
        table = RankTable.build(nodes, version=schema)
    except RankTableError as error:
        raise _broken(str(inventory), error.findings) from error
    if to is None:
        console.data(table.to_json())
        return
    write_result(to, table.to_json() + "\n")
    console.data(str(to))
    console.say_next("ranktable", "validate", str(to))


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(_("is larger than {mib} MiB: not a rank table").format(mib=MAX_FILE_BYTES // 2**20), where=str(file))
        return file.read_bytes()
    except OSError as error:
        raise UsageError(_("cannot be read: {reason}").format(reason=error.strerror), where=str(file)) from error


def _load(file: Path, world_size: int | None) -> RankTable:
    try:
        return parse(_read(file).decode("utf-8"), world_size=world_size)
    except UnicodeDecodeError as error:
        raise SpecFieldError(_("is not text"), where=str(file)) from error
    except RankTableError as error:
        raise _broken(str(file), error.findings) from error


def _broken(file: str, findings: tuple[Finding, ...]) -> NanochatNpuError:
    problems = [Problem(f"{finding.rule.value} {finding.message}", path=finding.place, hint=finding.hint or None, file=file) for finding in findings]
    return SpecFieldError(counted(len(findings), _("HCCL would refuse this rank table: {n} fault"), _("HCCL would refuse this rank table: {n} faults")), where=file, problems=problems)


def _servers(source: YamlSource) -> list[tuple[str, list[tuple[int, str]]]]:
    entries: Any = source.data.get("servers") or (source.data.get("rank_table") or {}).get("servers")
    if not isinstance(entries, list) or not entries:
        raise SpecFieldError(_("has no servers"), where=source.name, hint=_("write servers: [{{node: NAME, device_ips: [ADDRESS, …]}}, …]").format())
    found = []
    for index, entry in enumerate(entries):
        name = entry.get("server_id") or entry.get("node") if isinstance(entry, dict) else None
        addresses = entry.get("device_ips") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not isinstance(addresses, list) or not all(isinstance(ip, str) for ip in addresses):
            problem = source.problem(_("a server needs node (text) and device_ips (a list of addresses)"), ("servers", index))
            raise SpecFieldError(_("a server is not described"), where=source.name, problems=[problem])
        found.append((name, list(enumerate(addresses))))
    return found
