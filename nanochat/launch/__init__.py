"""The launcher: one per node. It checks the node, starts the ranks, watches them, and leaves with what they ended with.

torchrun is not used for this: it ends with 1 whatever a rank ended with, kills after 30 s where a checkpoint needs
minutes, waits up to 300 s at its exit barrier, and imports torch anew in each of 24 simulated ranks. What is kept of it
is the contract with the ranks (``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``, a store hosted
by the first node's agent), so ``torchrun -m nanochat rank`` works as well.
"""
