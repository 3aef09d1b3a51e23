"""A Google project is set up for jobs, and taken back: what it is made of, what is there, what is made and removed."""
