"""What runs on each host: standard library only, Python 3.10+, and nothing imported from the core.

It owns what both sides must agree on: the names of all objects (`names`), the records and their wire
version (`wire`), the frames of the log (`frames`), digests (`digest`) and the record stores (`records`).
"""
