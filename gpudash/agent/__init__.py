"""What is put into a program that is watched: standard library and torch only, from Python 3.9 on."""
