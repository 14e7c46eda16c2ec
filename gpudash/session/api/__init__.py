"""What ``import gpudash`` gives: thin functions over what the commands and the window use."""
