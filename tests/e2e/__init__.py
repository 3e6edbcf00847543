"""End-to-end tests: real processes, the real OpenAI client, a real browser."""
