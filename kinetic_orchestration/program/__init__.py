"""Serves the user's program on a host: its place in the slice, and training that survives the end of an attempt.

    context                        the host on which the program runs (HostContext)
    loop                           training that resumes (Training)
    trainers/                      trainers of others: Keras (KineticCallback), …
    reading/                       checkpoints for other tools (read_checkpoint), data in a bucket (StreamedData)
    preemption  ·  speed           notices that the machine goes; steps a second
    checkpoints/                   checkpoints: written, committed, restored and removed
    inference/                     many prompts, answered by all hosts

Nothing here imports a framework before the program has.
"""
