"""Transfer: a whole project out to open formats, and into another one, byte for byte."""
