"""The pages of the guide about methods."""
