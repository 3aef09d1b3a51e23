"""`kinor verify`: repeats on the real cloud what the emulator proves, within a budget, and writes a report to send.

`runner` runs the table of `steps` in a `scene`; `recording` receives every call to the cloud (`call_listeners`),
`redaction` anonymises it, `comparison` compares it with the emulator's answers (`baseline.json`), `report` writes it.
`budget` bounds the cost before.
"""
