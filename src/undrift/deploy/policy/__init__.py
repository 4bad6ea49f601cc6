"""A site's policy: which orders it accepts, what it remembers of them, and what it logs.

`limits` are the site's own settings, `agreed_run` derives the work of an order from the site's own
experiment, `gate` decides, `ledger` remembers, `audit` logs. `approval` asks a person, and
`preview` shows what would be sent.
"""
