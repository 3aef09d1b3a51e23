"""Does on a client what follows a training: models are promoted, registered and handed over to serving."""
