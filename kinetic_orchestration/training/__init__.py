"""Training that survives: checkpoints, resumption and what an orchestrator sees of it, for Keras and for plain loops.

    loop (Training)  ·  keras_callback (KineticCallback)  ·  reading (read_checkpoint)
    mirror                         files of trainers that keep their own checkpoints, sent and fetched
    keras_others                   what the other callbacks of a fit know
    checkpoints  ·  beside         what is written, committed, restored and removed; large ones while a training goes on
    agreement  ·  notice           hosts end at the same step; why this program is asked to end
    shelf  ·  parts  ·  trees      where they lie, one host's file, a state as named arrays
    commits                        names, the record that makes a checkpoint, differences (pure)

Nothing here imports a framework before the program has.
"""
