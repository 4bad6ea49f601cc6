"""Facts about what happens to uploads: private runs, transforms, compressors, robust statistics."""
