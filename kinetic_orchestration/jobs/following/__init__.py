"""Advances jobs: each step observes (`watching`), decides (`lifecycle`), acts (`actions`) and reads the hosts' logs."""
