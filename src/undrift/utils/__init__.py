"""Small helpers without domain knowledge: errors, files, random keys, formatting, threads."""
