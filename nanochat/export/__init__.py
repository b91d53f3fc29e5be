"""A trained model in formats that other programs read."""

from nanochat.export.formats import FORMATS, export

__all__ = ["FORMATS", "export"]
