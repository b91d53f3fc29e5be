"""What the golden tests share: plans of the specs in ``specs/``, on a fixed day."""

import datetime
from pathlib import Path

from nanochat_npu.load import load_spec
from nanochat_npu.plan import Plan, make_plan

HERE = Path(__file__).parent
SPECS = sorted(path.stem for path in (HERE / "specs").glob("*.yaml"))
CLUSTER_SPECS = [name for name in SPECS if not name.startswith("local")]
TODAY = datetime.date(2026, 11, 30)


def plan_of(name: str, *overrides: str) -> Plan:
    """The plan of a spec in ``specs/``."""
    return make_plan(load_spec(str(HERE / "specs" / f"{name}.yaml"), overrides, environ={"LOGNAME": "li"}).spec, TODAY)
