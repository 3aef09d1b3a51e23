"""Treats some leaves of a state in another way than the rest.

partial        leaves that are restored alone, by their paths
apart          leaves that other libraries write, by the commit of ours
orbax          those that Orbax writes
"""
