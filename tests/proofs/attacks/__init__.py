"""Mutants and detectors of what attacks found, one pair of modules for each subject.

A module of mutants never imports holdfast: the process in which mutants begin imports it.
"""
