"""The gateway: classify, decide, proxy, record. Never imports torch."""
