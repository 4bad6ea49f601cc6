"""Tables as inputs of a model: categories, dates and missing values, the same code for all clients.

`columns` declares how columns are read, `features` reads them, `statistics` asks every client for
sums and counts and agrees on an `encoding`, and `source` applies it to federated data.
"""
