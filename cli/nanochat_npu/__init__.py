"""nanochat-npu: from one spec to a training job on Ascend NPUs, or on this computer."""

__version__ = "0.1.0"
