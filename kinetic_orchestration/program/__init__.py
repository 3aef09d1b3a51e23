"""Serves the user's program on a host: its place in the slice, and training that survives the end of an attempt.

    context                        the host on which the program runs (HostContext)
    loop  ·  keras_callback        training that resumes: plain loops (Training), Keras (KineticCallback)
    keras_others                   state of the other callbacks of a fit
    reading                        checkpoints for other tools (read_checkpoint)
    preemption  ·  speed           notices that the machine goes; steps a second
    checkpoints/                   checkpoints: written, committed, restored and removed

Nothing here imports a framework before the program has.
"""
