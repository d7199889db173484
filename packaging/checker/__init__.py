"""The parts of packaging/check.py, which checks the files of this folder against a running agent."""
