"""Rules between fields. Each rule is a function that yields findings; `check` runs them all, so that one pass lists everything.

They run before anything is built or sent: what fails here would fail on the cluster after minutes in a queue, or silently.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import Any

from nanochat.contract import DataSource, Stage, neighbouring_batches
from nanochat_npu.i18n import _
from nanochat_npu.quantities import amount
from nanochat_npu.spec.blocks import DriverMount, RankTableMode, VolumeConfig
from nanochat_npu.spec.currencies import CURRENCIES
from nanochat_npu.spec.findings import FieldPath, Finding, nearest_currency
from nanochat_npu.spec.hccl import HcclConfig
from nanochat_npu.spec.model import Backend, JobSpec
from nanochat_npu.spec.platforms import PLATFORMS, NpuType, Platform, node_type_of

__all__ = ["ADVICE", "RULES", "advise", "check"]

Rule = Callable[[JobSpec], Iterator[Finding]]

RESERVED_ENV = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK_TABLE_FILE", "RANK_ID", "RANK_SIZE",
     "HCCL_IF_IP", "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "ASCEND_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD"}
)
"""Set by us from other fields. RANK and WORLD_SIZE mean three different things to torchrun, Volcano and MindCluster."""
SECRET_WORDS = ("KEY", "TOKEN", "PASSWORD", "PASSWD", "SECRET", "CREDENTIAL")
HOSTNAME_LIMIT = 63
WORKER_INFIX = "-worker-"
HAMI_CHIPS = frozenset({NpuType.A910B2, NpuType.A910B3, NpuType.A910B4, NpuType.A910B4_1, NpuType.A910C})
"""Chips with a resource name in HAMi's ``ascend-device-configmap.yaml``."""
_URL_LOGIN = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
"""A password in a URL, as in http://user:password@proxy."""
_KEY = re.compile(r"(?:(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Kubernetes' qualified name: a name of at most 63 characters, after a DNS subdomain and a slash if there is one."""
_MADE_BY = {Stage.TOKENIZER: (Stage.PRETRAIN,), Stage.PRETRAIN: (Stage.SFT, Stage.RL, Stage.EVAL)}
"""Stage -> stages that cannot run in front of it; the other orders may be meant, since a stage finds what the job made earlier."""


def check(spec: JobSpec) -> list[Finding]:
    """Everything that makes this spec impossible; empty for a good one."""
    return [finding for rule in RULES for finding in rule(spec)]


def advise(spec: JobSpec) -> list[Finding]:
    """What is possible but probably not meant."""
    return [finding for rule in ADVICE for finding in rule(spec)]


def _batch(spec: JobSpec) -> Iterator[Finding]:
    """An explicit batch divides into whole micro batches; a derived one is rounded by the plan."""
    run = spec.run
    stages = (("pretrain", run.pretrain.tokens_per_step, run.pretrain.device_batch), ("sft", run.sft.tokens_per_step, run.sft.device_batch or run.pretrain.device_batch))
    for stage, tokens, device_batch in stages:
        micro = device_batch * run.model.sequence_len * spec.world_size
        if tokens is not None and tokens % micro:
            yield _uneven_batch(spec, stage, tokens, device_batch)


def _uneven_batch(spec: JobSpec, stage: str, tokens: int, device_batch: int) -> Finding:
    length, world = spec.run.model.sequence_len, spec.world_size
    micro = device_batch * length * world
    below, above = neighbouring_batches(tokens, micro)
    message = _("{tokens} tokens are not a multiple of {batch} (device batch) x {length} (sequence) x {world} (ranks) = {micro}").format(
        tokens=tokens, batch=device_batch, length=length, world=world, micro=micro
    )
    hint = _("use {below} or {above}").format(below=below, above=above) if below != above else _("use {above}").format(above=above)
    return Finding(("run", stage, "tokens_per_step"), message, hint)


def _rollouts(spec: JobSpec) -> Iterator[Finding]:
    """Every rank needs an example of its own in a step of reinforcement learning."""
    if Stage.RL in spec.run.stages and spec.run.rl.examples_per_step < spec.world_size:
        message = _("{examples} examples per step for {world} ranks").format(examples=spec.run.rl.examples_per_step, world=spec.world_size)
        yield Finding(("run", "rl", "examples_per_step"), message, _("use {value} or a multiple").format(value=spec.world_size))


def _order(spec: JobSpec) -> Iterator[Finding]:
    """What makes the tokenizer or the first model does not stand behind what needs it; another job's (``run.resume``) may be used at once."""
    stages = spec.run.stages
    if "@" in spec.run.resume:
        return
    for maker, users in _MADE_BY.items():
        first = stages.index(maker) if maker in stages else 0
        for place, stage in enumerate(stages[:first]):
            if stage in users:
                message = _("{stage} needs what {maker} makes, which comes later").format(stage=stage.value, maker=maker.value)
                hint = _("put {maker} before {stage}, or go on from another job: run.resume: JOB@latest").format(stage=stage.value, maker=maker.value)
                yield Finding(("run", "stages", place), message, hint)


def _exams(spec: JobSpec) -> Iterator[Finding]:
    if Stage.EVAL in spec.run.stages and "core" in spec.run.eval.tasks and not spec.run.eval.bundle:
        yield Finding(("run", "eval", "bundle"), _("core needs an evaluation bundle"), _("set it to a folder or a zip"))


def _model(spec: JobSpec) -> Iterator[Finding]:
    if spec.run.model.head_dim % 2:
        yield Finding(("run", "model", "head_dim"), _("{value} is odd; rotary embeddings turn pairs").format(value=spec.run.model.head_dim))


def _names(spec: JobSpec) -> Iterator[Finding]:
    """The host name of the last worker is a label of at most 63 characters (Volcano's webhook checks only the first)."""
    if spec.backend is not Backend.VOLCANO:
        return
    last = f"{WORKER_INFIX}{spec.resources.nodes - 1}"
    if len(spec.name) + len(last) > HOSTNAME_LIMIT:
        message = _("{name}{last} would have {length} characters, a host name at most {limit}").format(
            name=spec.name, last=last, length=len(spec.name) + len(last), limit=HOSTNAME_LIMIT
        )
        yield Finding(("name",), message, _("shorten the name to {limit} characters").format(limit=HOSTNAME_LIMIT - len(last)))


def _keys(spec: JobSpec) -> Iterator[Finding]:
    """Keys of labels, annotations and selectors; the server refuses a wrong one after the image has been built and pushed."""
    for field, keys in (("labels", spec.cluster.labels), ("annotations", spec.cluster.annotations), ("node_selector", spec.cluster.node_selector)):
        for key in keys:
            if not _KEY.fullmatch(key):
                yield Finding(("cluster", field, key), _('"{key}" cannot be the key of a label or an annotation').format(key=key), _(
                    "at most 63 letters, digits, -, _ and . with a letter or digit at both ends; before it, if wanted, a DNS name and one /"))


def _counts(spec: JobSpec) -> Iterator[Finding]:
    """How many NPUs one worker may have; over several nodes only whole nodes."""
    count = spec.resources.npus_per_node
    if spec.backend is not Backend.VOLCANO or count == 0:
        return
    path: FieldPath = ("resources", "npus_per_node")
    if spec.resources.npu is None:
        yield Finding(("resources", "npu"), _("is missing: which NPU?"), _("one of {names}").format(names=", ".join(NpuType)), at_key=True)
    node = node_type_of(spec.resources.npu, spec.cluster.node_type)
    if count > node.ranks:
        yield Finding(path, _("{count} is more than a {node} node has ({ranks})").format(count=count, node=node.label, ranks=node.ranks))
    elif spec.resources.nodes > 1 and count != node.ranks:
        message = _("a job over {nodes} nodes takes whole nodes; a {node} node has {ranks}").format(nodes=spec.resources.nodes, node=node.label, ranks=node.ranks)
        yield Finding(path, message, _("use {ranks}, or resources.nodes: 1").format(ranks=node.ranks))
    elif count not in node.counts:
        allowed = ", ".join(str(one) for one in sorted(node.counts))
        yield Finding(path, _("a {node} node cannot give {count}").format(node=node.label, count=count), _("allowed: {counts}").format(counts=allowed))


def _chip(spec: JobSpec) -> Iterator[Finding]:
    npu, label, platform = spec.resources.npu, spec.cluster.node_type, spec.cluster.platform
    if npu and label and (npu is NpuType.A910C) != label.startswith("module-a3"):
        yield Finding(("cluster", "node_type"), _("a {node} node has no {npu}").format(node=label, npu=npu))
    if spec.backend is Backend.VOLCANO and platform is Platform.HAMI and npu and npu not in HAMI_CHIPS and spec.cluster.resource_name is None:
        yield Finding(("resources", "npu"), _("HAMi has no resource name for {npu}").format(npu=npu), _("give cluster.resource_name, or one of {names}").format(names=", ".join(sorted(HAMI_CHIPS))))


def _memory(spec: JobSpec) -> Iterator[Finding]:
    resources = spec.resources
    if resources.memory and (amount(resources.shm) or 0) > (amount(resources.memory) or 0):
        yield Finding(("resources", "shm"), _("{shm} of shared memory do not fit into memory {memory}").format(shm=resources.shm, memory=resources.memory))


def _volumes(spec: JobSpec) -> Iterator[tuple[FieldPath, VolumeConfig]]:
    storage = spec.storage
    for name in ("output", "data"):
        volume: VolumeConfig | None = getattr(storage, name)
        if volume is not None:
            yield ("storage", name), volume
    for name, volume in storage.extra.items():
        yield ("storage", "extra", name), volume


def _storage(spec: JobSpec) -> Iterator[Finding]:
    output = spec.storage.output
    if output is not None and output.read_only:
        yield Finding(("storage", "output", "read_only"), _("the output is written to: checkpoints and events"), _("remove read_only, or write elsewhere"))
    if spec.backend is Backend.VOLCANO and output is None:
        yield Finding(("storage", "output"), _("is missing: checkpoints would be lost with the pod"), _("storage: {output: {claim: NAME, path: /output}}"), at_key=True)
    seen: dict[str, FieldPath] = {}
    for path, volume in _volumes(spec):
        if (volume.claim is None) == (volume.host_path is None):
            yield Finding(path, _("give either claim or host_path"), None, at_key=True)
        mount = volume.path.rstrip("/") or "/"
        if mount in seen:
            yield Finding((*path, "path"), _("{mount} is already taken by {other}").format(mount=mount, other=".".join(str(part) for part in seen[mount])))
        seen.setdefault(mount, path)
        if mount == "/" or any(part in ("..", ".") for part in mount.split("/")):
            yield Finding((*path, "path"), _("{mount} cannot be mounted over").format(mount=volume.path))


def _data_place(spec: JobSpec) -> Iterator[Finding]:
    """Source and folder fit; a data stage that downloads needs a place to write to."""
    data = spec.run.data
    if data.source is DataSource.FOLDER and data.dir is None and spec.storage.data is None:
        yield Finding(("run", "data", "dir"), _("is missing: source folder needs the folder"), _("--set run.data.dir=PATH"), at_key=True)
    if data.source is DataSource.MANIFEST and data.manifest is None:
        yield Finding(("run", "data", "manifest"), _("is missing: source manifest needs the file"), _("--set run.data.manifest=PATH"), at_key=True)
    if spec.backend is not Backend.VOLCANO:
        return
    if data.dir is not None and not data.dir.startswith("/"):
        yield Finding(("run", "data", "dir"), _("{path} is a path in the container and starts with /").format(path=data.dir))
    volume = spec.storage.data
    if Stage.DATA in spec.run.stages and volume is not None and volume.read_only:
        yield Finding(("storage", "data", "read_only"), _("stage data writes there"), _("remove read_only, or remove stage data"))


def _environment(spec: JobSpec) -> Iterator[Finding]:
    owned = set(HcclConfig.variables())
    for name in spec.env:
        path: FieldPath = ("env", name)
        if name in RESERVED_ENV or name.startswith("NANOCHAT_"):
            yield Finding(path, _("{name} is set by us; another value breaks the start").format(name=name), _("remove it"), at_key=True)
        elif name in owned:
            yield Finding(path, _("{name} has a field of its own").format(name=name), _("write hccl.{field}").format(field=HcclConfig.variables()[name]), at_key=True)
        elif any(word in name.upper().split("_") for word in SECRET_WORDS) or _URL_LOGIN.search(spec.env[name]):
            hint = _("secrets: {{{name}: {{secret: NAME, key: KEY}}}}").format(name=name)
            yield Finding(path, _("a secret in plain text ends up in manifests, logs and annotations"), hint, at_key=True)
        if name in spec.secrets:
            yield Finding(path, _("{name} is also in secrets").format(name=name), _("keep one of them"), at_key=True)
    for name in spec.secrets:
        if name in RESERVED_ENV or name.startswith("NANOCHAT_"):
            yield Finding(("secrets", name), _("{name} is set by us; another value breaks the start").format(name=name), _("remove it"), at_key=True)


def _hccl(spec: JobSpec) -> Iterator[Finding]:
    hccl = spec.hccl
    if hccl.host_socket_port_range and hccl.if_base_port:
        yield Finding(("hccl", "if_base_port"), _("host_socket_port_range overrides it"), _("keep one of them"))
    if hccl.intra_roce and spec.cluster.node_type != "module-910b-16":
        yield Finding(("hccl", "intra_roce"), _("only for Atlas 200T A2 Box16 (cluster.node_type: module-910b-16)"))


def _rank_table(spec: JobSpec) -> Iterator[Finding]:
    table, path = spec.rank_table, ("rank_table", "mode")
    if table.servers and table.mode is not RankTableMode.STATIC:
        yield Finding(("rank_table", "servers"), _("only mode static reads them"), _("rank_table.mode: static, or remove them"), at_key=True)
    if spec.backend is not Backend.VOLCANO or table.mode is RankTableMode.NEGOTIATE:
        return
    if spec.resources.npus_per_node == 0:
        yield Finding(path, _("a CPU job has no rank table"), _("rank_table.mode: negotiate"))
    if table.mode is RankTableMode.OPERATOR and not PLATFORMS[spec.cluster.platform].rank_table_operator:
        yield Finding(path, _("nothing writes rank tables on platform {platform}").format(platform=spec.cluster.platform), _("use negotiate, static or discover"))
    if table.mode is RankTableMode.DISCOVER and spec.cluster.driver_mount is not DriverMount.HOSTPATH:
        yield Finding(path, _("discover reads /etc/hccn.conf, which Ascend Docker Runtime does not mount"), _("cluster.driver_mount: hostpath"))
    if table.mode is RankTableMode.STATIC:
        yield from _servers(spec)


def _servers(spec: JobSpec) -> Iterator[Finding]:
    """A static table names each node once and each NPU's own address once, in one family, as HCCL demands."""
    servers, nodes, per_node = spec.rank_table.servers, spec.resources.nodes, spec.resources.npus_per_node
    if len(servers) != nodes:
        yield Finding(("rank_table", "servers"), _("{count} servers for {nodes} nodes").format(count=len(servers), nodes=nodes), at_key=not servers)
    seen: dict[str, str] = {}
    families: set[int] = set()
    for i, server in enumerate(servers):
        path: FieldPath = ("rank_table", "servers", i)
        if len(server.device_ips) != per_node:
            yield Finding((*path, "device_ips"), _("{count} addresses for {npus} NPUs").format(count=len(server.device_ips), npus=per_node))
        for word, field in ((server.node, "node"), (server.server_id, "server_id")):
            if word is not None and f"{field} {word}" in seen:
                yield Finding((*path, field), _("{value} is given twice").format(value=word))
            seen.setdefault(f"{field} {word}", "")
        for j, address in enumerate(server.device_ips):
            yield from _address((*path, "device_ips", j), address, seen, families)


def _address(path: FieldPath, address: str, seen: dict[str, str], families: set[int]) -> Iterator[Finding]:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        yield Finding(path, _("{value} is not an IP address").format(value=repr(address)), _("address_N in /etc/hccn.conf, or hccn_tool -i N -ip -g"))
        return
    if str(parsed) in seen:
        yield Finding(path, _("{value} is given twice").format(value=address))
    seen[str(parsed)] = ""
    families.add(parsed.version)
    if len(families) > 1:
        yield Finding(path, _("IPv4 and IPv6 are mixed; HCCL refuses that (EI0001)"))
        families.discard(parsed.version)


def _image(spec: JobSpec) -> Iterator[Finding]:
    image = spec.image
    if image.code == "configmap" and image.ref is None:
        yield Finding(("image", "code"), _("configmap puts our code over an image that exists, so ref must name it"), _("image.ref: quay.io/ascend/torch-npu:..."))
    if image.ref is not None:
        for name, value in (("base", image.base), ("tag", image.tag)):
            if value is not None:
                yield Finding(("image", name), _("has no effect: ref is an image that is not built"), _("keep one of them"))


def _security(spec: JobSpec) -> Iterator[Finding]:
    user = spec.security.run_as_user
    if spec.backend is Backend.VOLCANO and spec.resources.npus_per_node > 0 and user not in (0, 1000):
        yield Finding(("security", "run_as_user"), _("user {user} cannot open NPU devices; they belong to 1000 (HwHiAiUser)").format(user=user), _("use 0 or 1000"))


def _tolerations(spec: JobSpec) -> Iterator[Finding]:
    for i, toleration in enumerate(spec.cluster.tolerations):
        path: FieldPath = ("cluster", "tolerations", i)
        if toleration.operator == "Exists" and toleration.value is not None:
            yield Finding((*path, "value"), _("operator Exists takes no value"))
        if toleration.operator == "Equal" and toleration.key is None:
            yield Finding(path, _("operator Equal needs a key"))
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            yield Finding((*path, "toleration_seconds"), _("only effect NoExecute takes seconds"))


def _money(spec: JobSpec) -> Iterator[Finding]:
    if spec.budget.max_total is not None and spec.price is None:
        yield Finding(("budget", "max_total"), _("cannot be held without a price"), _("add price: {per_npu_hour: ..., source: ..., date: ...}"))
    price = spec.price
    if price is None:
        return
    if price.currency not in CURRENCIES:
        close = nearest_currency(price.currency)
        hint = _("did you mean {name}?").format(name=close) if close else _("a code of ISO 4217: CNY, USD, EUR")
        yield Finding(("price", "currency"), _("{code} is no currency that we know").format(code=price.currency), hint)
    if price.low is not None and price.low > price.per_npu_hour:
        yield Finding(("price", "low"), _("{low} is above per_npu_hour ({price})").format(low=price.low, price=price.per_npu_hour))
    if price.high is not None and price.high < price.per_npu_hour:
        yield Finding(("price", "high"), _("{high} is below per_npu_hour ({price})").format(high=price.high, price=price.per_npu_hour))


def _text(spec: JobSpec) -> Iterator[Finding]:
    """No NUL: neither an environment nor a path can hold one. Every other character is quoted where it is written."""
    yield from _nul_characters(spec.model_dump(mode="json"), ())


def _nul_characters(value: Any, path: FieldPath) -> Iterator[Finding]:
    if isinstance(value, str) and "\0" in value:
        yield Finding(path, _("a NUL character in a text"))
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _nul_characters(item, (*path, key))


RULES: tuple[Rule, ...] = (
    _text, _batch, _rollouts, _order, _exams, _model, _names, _keys, _counts, _chip, _memory, _storage, _data_place, _environment, _hccl, _rank_table, _image, _security, _tolerations, _money,
)


def _idle_npus(spec: JobSpec) -> Iterator[Finding]:
    if spec.resources.npus_per_node > 0 and set(spec.run.stages) <= {Stage.DATA, Stage.TOKENIZER} and spec.backend is Backend.VOLCANO:
        message = _("these stages use no NPU, but the job holds {count}").format(count=spec.world_size)
        if spec.price is not None and spec.price.per_npu_hour:
            message = _("these stages use no NPU, but the job holds {count}, which costs {price:,.2f} {currency} an hour").format(
                count=spec.world_size, price=spec.world_size * spec.price.per_npu_hour, currency=spec.price.currency)
        yield Finding(("run", "stages"), message, _("resources.npus_per_node: 0"))


def _tracker_key(spec: JobSpec) -> Iterator[Finding]:
    tracking = spec.run.tracking
    name = {"swanlab": "SWANLAB_API_KEY", "wandb": "WANDB_API_KEY"}.get(tracking.logger)
    if name and tracking.mode == "cloud" and spec.backend is Backend.VOLCANO and name not in spec.secrets:
        hint = _("secrets: {{{name}: {{secret: NAME, key: KEY}}}}").format(name=name)
        yield Finding(("run", "tracking", "logger"), _("no {name} in secrets: the job trains, but is not tracked").format(name=name), hint)


def _pushed_where(spec: JobSpec) -> Iterator[Finding]:
    if spec.backend is Backend.VOLCANO and spec.image.ref is None and spec.image.registry is None:
        yield Finding(("image", "registry"), _("no registry: nodes can only use an image that is already on them"), _("set image.registry, best in the site file"))


def _url_logins(spec: JobSpec) -> Iterator[Finding]:
    places: list[tuple[FieldPath, str | None]] = [(("image", "mirrors", name), getattr(spec.image.mirrors, name)) for name in type(spec.image.mirrors).model_fields]
    places += [(("run", "data", "mirrors", i), url) for i, url in enumerate(spec.run.data.mirrors)]
    for path, url in places:
        if url is not None and _URL_LOGIN.search(url):
            yield Finding(path, _("a password in an address ends up in manifests, build logs and receipts"), _("use an address that needs none"))


ADVICE: tuple[Rule, ...] = (_url_logins, _idle_npus, _tracker_key, _pushed_where)
