"""Places that hold model directories: a folder, Cloud Storage, S3. One module for each, which knows no other."""
