"""Runs: experiments, their folders and their reports."""
