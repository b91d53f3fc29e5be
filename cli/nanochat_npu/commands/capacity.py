"""``capacity``: NPUs of the cluster by node and queue, and who holds them."""

from dataclasses import asdict

from nanochat_npu import console, tables
from nanochat_npu.backends.volcano import connect
from nanochat_npu.cluster.capacity import Capacity, read
from nanochat_npu.i18n import _
from nanochat_npu.options import ContextOption, NamespaceOption, OutputFormat, OutputOption
from nanochat_npu.tables import Section

__all__ = ["command", "sections"]


def command(namespace: NamespaceOption = None, context: ContextOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Show NPUs by node and queue: how many there are, how many are free, and who holds the rest."""
    backend = connect(namespace=namespace, context=context)
    found = read(backend.kube, backend.namespace)
    if output is OutputFormat.JSON:
        console.json_data({**asdict(found), "total": found.total, "free": found.free, "whole_nodes_free": found.whole_nodes})
        return
    made = sections(found)
    console.data(tables.to_markdown(made) if output is OutputFormat.MARKDOWN else tables.to_text(made))
    for what in found.unread:
        console.say(_("not shown, for lack of rights: {what}").format(what=what))


def sections(found: Capacity) -> list[Section]:
    """The tables of the view."""
    unknown = "?"
    total = Section("summary", rows=(
        (_("resource"), found.resource),
        (_("NPUs"), _("{free} free of {total}").format(free=unknown if found.free is None else found.free, total=found.total)),
        (_("whole nodes free"), unknown if found.whole_nodes is None else str(found.whole_nodes)),
    ))
    nodes = Section("nodes", _("Nodes"), header=(_("node"), _("type"), _("NPU"), _("free"), _("of"), ""), table=tuple(
        (node.name, node.kind or "-", node.chip or "-", unknown if node.free is None else str(node.free), str(node.total), "" if node.ready else _("takes no pods"))
        for node in found.nodes
    ))
    queues = Section("queues", _("Queues"), header=(_("queue"), _("state"), _("holds"), _("at most")), table=tuple(
        (queue.name, queue.state or "-", unknown if queue.allocated is None else str(queue.allocated), "-" if queue.capability is None else str(queue.capability))
        for queue in found.queues
    ))
    holders = Section("holders", _("Held by"), header=(_("namespace"), _("job"), _("owner"), _("NPUs"), _("nodes")), table=tuple(
        (holder.namespace, holder.job, holder.owner or "-", str(holder.npus), str(holder.nodes)) for holder in found.holders
    ))
    return [total, nodes, queues, holders]
