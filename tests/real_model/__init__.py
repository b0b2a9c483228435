"""One honest end-to-end proof: holdfast's public API against a real model, over both wire formats.

The model is SmolLM2 with 135 million parameters, served on loopback by llama.cpp (`engine`). It is weak, so a proof
requires what is certain for every reply (what was sent, what came, what was recorded), and of what it has to be clever
for only that it succeeds once in three. Between both stands a `recorder` that writes down every byte: what holdfast
recorded is held against what really went over the wire.
"""
