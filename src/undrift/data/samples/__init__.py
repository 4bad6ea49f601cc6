"""Samples in every form: one tensor, several or named ones, in memory or read when needed."""
