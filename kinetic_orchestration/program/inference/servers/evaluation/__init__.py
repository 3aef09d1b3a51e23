"""Evaluates the model of a server: `step` is what a host runs, `harness` asks the prompts of tasks, `scores` are
compared.
"""
