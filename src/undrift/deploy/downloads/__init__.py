"""Compressed downloads: the server sends changes of vectors, and sites form the vectors again.

Server and site name a vector by its checksum. A site that does not have the vector to be changed
says so, and gets the whole one in the same round; a vector that comes out differently is refused.
"""
