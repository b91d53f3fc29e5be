"""The container image: what goes into it, how it is named, who builds it."""
