"""The command `breakeven`: stands above gateway and engine and imports both lazily."""
