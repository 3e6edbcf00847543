"""Operations reporting: sums from roll-ups → figures → a page, text, JSON or CSV. Reads summaries, never raw logs.

`model` holds the structs, `figures` the arithmetic, `collect` the queries, `render` the forms.
"""
