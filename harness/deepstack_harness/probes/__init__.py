"""What is measured, one file each; probes state facts and never judge them."""
