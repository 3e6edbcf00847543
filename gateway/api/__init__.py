"""The HTTP edge: OpenAI's endpoints and the operator's; the only package besides `app` that knows the web framework."""
