"""What every service of AWS asks for: signatures and credentials."""
