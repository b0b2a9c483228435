"""Session, and the pieces it is made of."""

from holdfast.session.session import Session as Session
