"""The kits that ship with holdfast."""
