"""What rests with a site: models of its own, and tables of which it sends only statistics."""
