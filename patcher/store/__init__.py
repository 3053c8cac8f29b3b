"""The only code that writes to a target: `transaction` is the door, every other module owns one danger."""
