"""Everything that the Kubernetes objects of a job say, decided and named: templates lay it out, `verify` holds them to it."""

from nanochat_npu.manifest.build import TASK, manifest_of
from nanochat_npu.manifest.places import JOB_MOUNT, rank_plugins
from nanochat_npu.manifest.policies import policies
from nanochat_npu.manifest.types import EnvVar, Manifest, Policy, Volume, run_map_name

__all__ = ["JOB_MOUNT", "TASK", "EnvVar", "Manifest", "Policy", "Volume", "manifest_of", "policies", "rank_plugins", "run_map_name"]
