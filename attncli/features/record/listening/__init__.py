"""The attention of a running program: the calls that compute it, their modules and their layers."""
