"""Answers many prompts on the hosts of a job, and keeps what is answered whatever ends them.

    step        the function that each host runs
    models      what a model is, and what identifies it
    rows        prompts: read, checked, keyed by digest, in an order
    output      plans, parts, journals and claims in the output folder or bucket
    work        the parts that a host has in hand, and the lanes that answer their rows
    client      one request to a server: what is tried again, and what is the prompt's own fault
    report      counts, rates and latencies of all hosts
    results     the answers, for the steps after it
    servers/    a model's server on a host: declared, started, watched, restarted and ended

Nothing here imports a framework.
"""
