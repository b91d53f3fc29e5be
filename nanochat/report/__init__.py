"""What a job did, for people: one HTML page, one Markdown file, charts and CSV. Needs no torch and no network."""

from nanochat.report.collect import Report, Series, collect

__all__ = ["Report", "Series", "collect"]
