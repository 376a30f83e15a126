"""Files of torch.save: zip archives whose records are read and verified without torch."""
