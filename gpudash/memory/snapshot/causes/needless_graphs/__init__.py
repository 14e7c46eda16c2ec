"""Forward passes that keep their graph though nothing is differentiated by it: no_grad is missing."""
