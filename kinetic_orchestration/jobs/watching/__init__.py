"""Observes jobs: reads their records, asks their backend, and wakes their followers. Decides nothing.

`look` reads one attempt, `poll` all jobs of a store. A watcher polls regularly, and wakes the followers that have news.
"""
