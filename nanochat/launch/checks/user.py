"""This user is one to whom the NPU driver opens devices."""

import os
import pwd

from nanochat.contract import RunFile
from nanochat.errors import BadConfig
from nanochat.launch.settings import LaunchSettings

__all__ = ["check"]


def check(settings: LaunchSettings, run: RunFile) -> None:
    """Look the user up: without a passwd entry HCCL fails minutes later with "ra init failed, return[19]".

    Raises:
        BadConfig: The user is neither root nor 1000, or has no entry in /etc/passwd.
    """
    if run.world.device != "npu":
        return
    user = os.getuid()
    if user not in (0, 1000):
        raise BadConfig(f"user {user} sees no NPU: device nodes belong to HwHiAiUser (1000)", where="security.run_as_user", hint="use 0 or 1000")
    try:
        pwd.getpwuid(user)
    except KeyError:
        raise BadConfig(
            f"user {user} has no entry in /etc/passwd, which the driver needs (ra init failed, return[19])", where="image",
            hint="build the image with nanochat-npu build, which adds one, or use security.run_as_user: 0",
        ) from None
