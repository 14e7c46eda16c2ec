"""What cuDNN says of convolutions without a card, held against a card: the first measurements on one."""
