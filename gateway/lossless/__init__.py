"""Losslessness audits: the same greedy request on a plain and a speculative arm, message against message.

Live shares by `auditor` (a rule's `audit`), sets of prompts by `pairs` (`breakeven backends check`); both send with
`replay` and compare with `compare`.
"""
