"""Ways to guess the next tokens: n-gram lookup, suffix matching, predicted outputs, a draft model."""
