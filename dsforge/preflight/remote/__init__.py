"""What runs on the hosts: sent over ssh, so it needs nothing there but a Python 3.9.

These modules import only the standard library and each other. dsforge, torch or the right
interpreter may be what is missing on a host, so none of them can be asked to report it.
"""
