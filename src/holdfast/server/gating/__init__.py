"""The parts of the gate, one file for each thing that it looks at or says."""
