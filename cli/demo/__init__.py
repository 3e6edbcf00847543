"""`breakeven demo`: a mixed workload on both paths, and a table of what speculation gained and cost.

`command` reads the options, `workload` the prompts, `client` sends one request, `runner` pairs them,
`figures` turns samples into the design's numbers and `render` into a table or JSON.
"""

from cli.demo.command import demo

__all__ = ("demo",)
