"""The decoding engine: a server process of its own that speaks OpenAI HTTP plus one extension.

Only `engine.messages` (wire structs) and `engine.control` (the in-flight rule) are free of torch; the gateway and the
simulator import nothing else from here.
"""
