"""`ko verify`: what the emulator proves, on the real thing, within a budget, with a report to send.

`runner` runs the table of `steps` in a `scene`; `recording` hears every call that leaves (`tap`), `redaction` makes it
nobody's, `comparison` lays it beside what the emulator answers (`baseline.json`), `report` writes it. `budget` says
first what it can cost.
"""
