"""The engine's HTTP server: OpenAI's interface with the per-request extension. Litestar only here in `engine`."""
