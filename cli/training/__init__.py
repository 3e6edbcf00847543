"""Training and evaluation of the text classifier, behind `breakeven classifier` (needs scikit-learn)."""
