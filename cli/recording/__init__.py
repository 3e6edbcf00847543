"""Records acceptance traces with the engine's own core and drafters. Called by `breakeven record-traces`."""
