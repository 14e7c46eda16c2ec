"""What is installed without pip, built and started: ``make package``."""
