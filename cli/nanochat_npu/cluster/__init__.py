"""What is done with a job on a cluster: send it, read it, follow it, stop it, get at its files. One module each."""
