"""nanochat for Ascend NPUs: the trainer that runs inside the container, or on this computer with the local backend."""

__version__ = "0.1.0"
