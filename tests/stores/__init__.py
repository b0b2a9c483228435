"""Every store under one contract, and what each does when disks, servers and processes fail."""
