"""Kits for testing what you build on holdfast: the contract of a store, crashes, faults and power loss."""

from holdfast.ids import FixedIds
from holdfast.models.scripted import call, error
from holdfast.testing.contract import StoreContract

__all__ = ["FixedIds", "StoreContract", "call", "error"]
