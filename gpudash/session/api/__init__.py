"""The functions of ``import gpudash``: a thin layer over what the commands and the window use."""
