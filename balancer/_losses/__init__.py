"""What a call is given, checked, and what it gives back."""
