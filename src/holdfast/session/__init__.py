"""`Session`, the object that users work with; each module here holds its methods of one subject."""
