"""Facts about what happens to uploads: private runs, and upload transforms."""
