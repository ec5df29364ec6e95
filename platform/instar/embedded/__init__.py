"""`instar up`: starts and supervises everything on one machine."""
