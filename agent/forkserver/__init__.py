"""Processes that have loaded what training scripts load, from which workers are forked."""
