"""Fair shares: whose attempt may have its hosts now, decided without a server by those who wait.

`rules` decides, and is pure; `records` are the objects in the store; `line` is one attempt's place in the line.
"""
