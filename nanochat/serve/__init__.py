"""The chat server: one process, OpenAI's protocol, many conversations over one KV cache, and a page to talk to it."""
