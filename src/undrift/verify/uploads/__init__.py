"""Facts about what happens to uploads: transforms, compressors and robust statistics."""
